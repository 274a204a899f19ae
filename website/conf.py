"""How Sphinx builds the website from what `utils/website.py` lays out. Nothing comes from another server."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

project = "OpenVINO model notebooks"
html_title = project
extensions = ["myst_nb"]
root_doc = "index"
exclude_patterns = ["_extra", "_static"]

nb_execution_mode = "off"  # the notebooks are committed executed
nb_ipywidgets_js = {}  # widgets show their text: their code would come from another server
nb_merge_streams = True
nb_render_text_lexer = "none"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = [
    "mystnb.unknown_mime_type",  # a widget is followed by its text
    "myst.header",  # an output's or a README's headings may skip a level
]

html_theme = "furo"
html_math_renderer = "mathml"
html_extra_path = ["_extra"]  # pictures, sound and video that pages name in HTML
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def _inline_math(translator, node):
    translator.body.append(convert(node.astext()))
    raise SkipNode


def _displayed_math(translator, node):
    translator.body.append(f"<div>{convert(node.astext(), display='block')}</div>")
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline_math, None), (_displayed_math, None))
