"""The page that an unpacked bundle begins with: what is in it, which Python it needs, and the two commands.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from utils.setup.systems import SYSTEMS

NAME = "START_HERE.html"
LAB = "-m jupyter lab --ServerApp.ip=127.0.0.1 --LabApp.default_url=/lab/tree/README.md"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Start here</title>
<style>body {{ max-width: 44em; margin: 2em auto; padding: 0 1em; font: 1em/1.5 sans-serif }}
pre {{ background: #eee; color: #111; padding: 1em; overflow: auto }}</style>
</head>
<body>
<main>
<h1>Start here</h1>
<p>This folder has notebooks that run models with OpenVINO, and all that they need: {size:.1f} GB of programs, packages
and models. Nothing is downloaded.</p>
<h2>What your computer needs</h2>
<ul>
<li>It runs {title}. This folder is for no other system.</li>
<li>It has Python {python}, in 64 bits. Another version of Python will not do.</li>
<li>It has 8 GB of memory, and 6 GB of free disk beyond this folder.</li>
</ul>
<h2>Two commands</h2>
<p>Open a terminal in this folder. The first command prepares Python's packages, in a few minutes, and the second opens
the notebooks in your browser:</p>
<pre tabindex="0">{commands}</pre>
<p>Then read README.md, which opens first: it lists the notebooks in learning order.</p>
{without}</main>
</body>
</html>
"""


def page(platform: str, python: str, size: int, without: Sequence[str]) -> str:
    """The page as HTML. platform: the system; size: of what is packed, in bytes; without: what was left out."""
    windows = platform == "windows"
    program, own = ("python", r".venv\Scripts\python") if windows else (f"python{python}", ".venv/bin/python")
    title = SYSTEMS[platform].title if platform in SYSTEMS else platform
    missing = ""
    if without:
        names = escape(", ".join(without))
        missing = (
            "<h2>What is missing</h2>\n"
            f"<p>Licences forbid passing these on: {names}. Notebooks that need them say so, and fetch them when the "
            "computer has a network.</p>\n"
        )
    commands = f"{program} -m utils.setup.env\n{own} {LAB}"
    return PAGE.format(size=size / 1e9, title=escape(title), python=python, commands=commands, without=missing)
