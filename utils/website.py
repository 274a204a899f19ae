"""`python -m utils.website` builds a website with search from the executed notebooks, into `dist/site`.

Sphinx builds it, in an environment of its own (`.venv-site`, website/requirements.txt). Before, notebooks, README
files and what they show or link to are laid out in a folder that Sphinx reads (`lay_out`).
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from utils import about
from utils.paths import ROOT
from utils.setup import env

SETTINGS = ROOT / "website"
VENV = ROOT / ".venv-site"
STAMP = VENV / ".ready"
EXTRA = "_extra"  # files that Sphinx copies as they are
MEDIA = {".gif", ".jpeg", ".jpg", ".mp3", ".mp4", ".ogg", ".png", ".svg", ".wav", ".webm", ".webp"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]*)(#[^()\s]*)?\)")
MENDED = (  # what the theme and Sphinx leave out for people who use a keyboard or a screen reader
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    (r'<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
    (r"<pre>", '<pre tabindex="0">'),  # what scrolls can have the focus
    (r'<div class="((?:math|table)-wrapper)\b', r'<div tabindex="0" class="\1'),
    (r"<th[^>]*>(?:<p></p>)?</th>", "<td></td>"),  # of a column without a name
    (r'<div id="search-results">', '<h1>Search</h1>\n<div id="search-results">'),
)
HREF = re.compile(r'href="(?![a-z]+:)([^"]+)\.ipynb"')


def lay_out(folder: Path, root: Path = ROOT) -> None:
    """Write what Sphinx reads to `folder`: the front page as index.md, every notebook, its pages, media and files.

    Links to folders become text, and cells whose source is hidden are marked so. Raises about.InvalidAbout.
    """
    notebooks = [file for file in root.glob("notebooks/*/*.ipynb") if file.stem == file.parent.name]
    order = {file: about.load(file.parent) for file in notebooks}
    notebooks.sort(key=lambda file: (order[file].order, file))
    index = _page(root / "README.md", folder, root)
    for level in about.LEVELS:
        index += _contents(level.capitalize(), [_name(file, root) for file in notebooks if order[file].level == level])
    readmes = [file.with_name("README.md") for file in notebooks]
    index += _contents("READMEs", [_name(file, root) for file in readmes] + ["CONTRIBUTING"])
    _copy(SETTINGS / "conf.py", folder / "conf.py")
    _copy(SETTINGS / "style.css", folder / "_static" / "style.css")
    _write(folder / "index.md", index)
    _write(folder / "CONTRIBUTING.md", _page(root / "CONTRIBUTING.md", folder, root))
    for notebook in notebooks:
        _write(folder / notebook.relative_to(root), _notebook(notebook, folder, root))
        for page in sorted(notebook.parent.glob("*.md")):
            text = _page(page, folder, root)
            if page.name == "README.md":
                others = sorted(other.stem for other in page.parent.glob("*.md") if other != page)
                text += _contents("", others)
            _write(folder / page.relative_to(root), text)
        for file in sorted(notebook.parent.rglob("*")):
            if file.suffix in MEDIA:
                _copy(file, folder / EXTRA / file.relative_to(root))


def build(output: Path) -> None:
    """Build the website. Raises env.SetupError with Sphinx' last lines when there is a warning, such as a dead link."""
    python = _prepare()
    with TemporaryDirectory() as scratch:
        pages, built = Path(scratch, "pages"), Path(scratch, "site")
        lay_out(pages)
        options = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"]
        places = ["--doctree-dir", Path(scratch, "doctrees"), pages, built]
        env.execute(python, "-m", "sphinx", *options, *places)
        for page in built.rglob("*.html"):
            page.write_text(mended(page.read_text(encoding="utf-8")), encoding="utf-8")
        (built / ".nojekyll").touch()  # else the folders whose names begin with _ would not be published
        if output.exists():
            shutil.rmtree(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, output)


def mended(page: str) -> str:
    """A built page as HTML, with what axe misses in it (tests/test_accessibility.py)."""
    for pattern, replacement in MENDED:
        page = re.sub(pattern, replacement, page)
    return page


def _prepare() -> Path:
    """The Python of the site's environment, which is made when it is missing or out of date."""
    lock = SETTINGS / "requirements.lock"
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = hashlib.sha256(f"{sys.version_info[:2]} {VENV} {lock.read_text(encoding='utf-8')}".encode()).hexdigest()
    if not (STAMP.is_file() and STAMP.read_text(encoding="utf-8") == stamp):
        print(f"site: making {VENV.name} ...", flush=True)
        venv.create(VENV, clear=True, symlinks=os.name != "nt", with_pip=True)
        install = ["-m", "pip", "--no-input", "install", "-r", SETTINGS / "requirements.txt", "-c", lock]
        env.execute(python, *install, environment=env.pip_environment())
        STAMP.write_text(stamp, encoding="utf-8")
    return python


def _page(page: Path, folder: Path, root: Path) -> str:
    return _linked(page.read_text(encoding="utf-8"), page, folder, root)


def _notebook(notebook: Path, folder: Path, root: Path) -> str:
    book = json.loads(notebook.read_text(encoding="utf-8"))
    book["metadata"].pop("widgets", None)
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _linked("".join(cell["source"]), notebook, folder, root)
        elif cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"].setdefault("tags", []).append("hide-input")
    return json.dumps(book, ensure_ascii=False)


def _linked(text: str, page: Path, folder: Path, root: Path) -> str:
    """A page's Markdown whose links lead to pages of the site or to files that are copied there."""
    pages = {root / "CONTRIBUTING.md", *root.glob("notebooks/*/*.md"), *root.glob("notebooks/*/*.ipynb")}

    def link(match: re.Match) -> str:
        picture, words, target, anchor = match.groups("")
        if re.match(r"[a-z]+:", target):
            return match[0]
        found = (page.parent / target).resolve() if target else page
        if found.is_dir():
            return words
        if found == root / "README.md":
            return f"{picture}[{words}]({os.path.relpath(root / 'index.md', page.parent)}{anchor})"
        if found.suffix in (".md", ".ipynb"):
            if found not in pages:
                return words
            return f"{picture}[{words}]({target}{_anchor(anchor) if found.suffix == '.ipynb' else anchor})"
        if found.is_file():
            _copy(found, folder / found.relative_to(root))
        return match[0]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)  # code stays as it is
    return "".join(part if i % 2 else HREF.sub(r'href="\1.html"', LINK.sub(link, part)) for i, part in enumerate(parts))


def _anchor(anchor: str) -> str:
    """What the site calls a heading of a notebook: Jupyter keeps its capitals and its punctuation."""
    return re.sub(r"[^\w#-]", "", unquote(anchor).lower())


def _contents(caption: str, pages: list[str]) -> str:
    """A hidden table of contents, which the theme shows at the side."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n\n```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n" if pages else ""


def _name(page: Path, root: Path) -> str:
    return page.relative_to(root).with_suffix("").as_posix()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog="python -m utils.website", description="Build the website.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "site", help="the folder to write")
    output = parser.parse_args(arguments).output.resolve()
    try:
        build(output)
    except (env.SetupError, ValueError, OSError) as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    print(f"site: {output / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
