"""Where the repository is on the web, from pyproject.toml, and what follows from it: links that open the notebooks
elsewhere, and the notebook that Colab opens.

`python -m utils.report` writes both.
"""

import json
import re
import tomllib
from pathlib import Path
from urllib.parse import quote

from utils.paths import ROOT

COLAB = "binder/colab.ipynb"
BRANCH = "main"
GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)")
NO_ADDRESS = (
    "Links that open the notebooks in Colab, Binder and Codespaces will stand here: they need the address of this "
    "repository, which [pyproject.toml](pyproject.toml) does not have yet (`Repository` under `[project.urls]`)."
)
INTRODUCTION = """# Run a notebook of this collection in Colab

The first cell fetches the collection and prepares its environment, which takes some minutes. The second cell runs one
notebook and shows it. Choose another by changing `CASE`."""
SET_UP = """import importlib.util
import subprocess
import sys
from pathlib import Path

REPOSITORY = {address!r}
FOLDER = Path("collection").resolve()

if not REPOSITORY:
    raise ValueError("Write the address of the repository into REPOSITORY: pyproject.toml does not have it yet.")
if importlib.util.find_spec("ensurepip") is None:  # Colab's Python comes without
    package = "python{{}}.{{}}-venv".format(*sys.version_info)
    subprocess.run(["apt-get", "install", "-y", "-qq", package], check=True)
if not FOLDER.exists():
    subprocess.run(["git", "clone", "--quiet", "--depth=1", REPOSITORY, FOLDER], check=True)
subprocess.run([sys.executable, "-m", "utils.setup.env"], cwd=FOLDER, check=True)
print("ready")"""
RUN = """from IPython.display import HTML, display

CASE = "dien"
python = FOLDER / ".venv/bin/python"
subprocess.run([python, "-m", "utils.run", CASE, "--save", f"{CASE}.ipynb"], cwd=FOLDER, check=True)
subprocess.run([python, "-m", "jupyter", "nbconvert", "--to=html", f"{CASE}.ipynb"], cwd=FOLDER, check=True)
display(HTML((FOLDER / f"{CASE}.html").read_text(encoding="utf-8")))"""


def repository(root: Path = ROOT) -> str | None:
    """The address that pyproject.toml has under `[project.urls]`, or None when it has none.

    Raises ValueError for what is no address of a repository, such as a placeholder.
    """
    file = root / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
    address = project.get("urls", {}).get("Repository")
    if address is not None and not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w.-]+){2,}", address):
        raise ValueError(
            f"pyproject.toml has {address!r} as Repository. Write the address in full (https://github.com/owner/name), "
            "or leave it out as long as there is none."
        )
    return address


def front_page(address: str | None) -> str:
    """The line of the front page that opens the collection elsewhere, or a sentence why it is not there."""
    if address is None:
        return NO_ADDRESS
    readme = quote("lab/tree/README.md", safe="")
    if found := GITHUB.fullmatch(address):
        name = found[1]
        places = {
            "Colab": f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{COLAB}",
            "Binder": f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath={readme}",
            "Codespaces": f"https://codespaces.new/{name}",
        }
    else:
        places = {"Binder": f"https://mybinder.org/v2/git/{quote(address, safe='')}/{BRANCH}?urlpath={readme}"}
    return "Without installing anything: " + ", ".join(f"[open in {name}]({url})" for name, url in places.items()) + "."


def colab(address: str | None) -> str:
    """The notebook that Colab opens, as JSON."""
    sources = [("markdown", INTRODUCTION), ("code", SET_UP.format(address=address or "")), ("code", RUN)]
    cells = []
    for number, (kind, source) in enumerate(sources):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"
