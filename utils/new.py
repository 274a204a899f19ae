"""`python -m utils.new CASE TITLE` lays out a notebook: its folder, its tests and a mutation, copied from a template.

The template is a small notebook that works, in utils/template, whose folders mirror the repository's. The headings of
its notebook are those that every notebook must have (`sections`).
"""

import argparse
import json
import keyword
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from utils.paths import ROOT

TEMPLATE = Path(__file__).with_name("template")
CASE, TITLE = "new_case", "New title"  # what the template says in place of a name and a title
PLACES = ("notebooks/new_case", "tests/new_case", "tests/mutations/new_case.toml")
NEXT = """Written: {places}.

The new notebook reads digits; replace them by your model, module by module. `make test` says what is left to do:
  make train CASE={case}                      writes the tiny checkpoint
  make run CASE={case} ARGS="--save notebooks/{case}/{case}.ipynb"
                                        executes the notebook and writes its results
  (save a picture of what the model made as notebooks/{case}/thumbnail.jpg, 320 x 200 pixels)
  {python} -m utils.licences    lists the checkpoint in THIRD_PARTY.md
  {python} -m utils.report      writes the numbers into the READMEs
"""


def sections() -> list[str]:
    """The second-level headings of every notebook, in their order."""
    notebook = TEMPLATE / "notebooks" / CASE / f"{CASE}.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def lay_out(case: str, title: str, root: Path = ROOT) -> list[Path]:
    """Write a new notebook and its tests below `root`; returns the files and folders that are new.

    Raises ValueError for a name that is no Python identifier of small letters or is taken, and for a title that is
    empty or has several lines. After any error nothing is left behind.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", case) or keyword.iskeyword(case):
        raise ValueError(f"{case!r} cannot name a notebook. Use small letters, digits and _, such as CASE=my_model.")
    if not title.strip() or not title.isprintable():
        raise ValueError(f'The title is {title!r}. Give one line of text, such as TITLE="Read handwritten digits".')
    targets = [root / place.replace(CASE, case) for place in PLACES]
    if taken := [target for target in targets if target.exists()]:
        raise ValueError(f"{taken[0].relative_to(root)} exists already. Choose another name, or remove it first.")
    with TemporaryDirectory(dir=root, prefix=".new-") as scratch:
        for file in sorted(TEMPLATE.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                written = Path(scratch, str(file.relative_to(TEMPLATE)).replace(CASE, case))
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_bytes(_filled(file, case, title.strip()).encode())
        _move([Path(scratch, target.relative_to(root)) for target in targets], targets)
    return targets


def _filled(file: Path, case: str, title: str) -> str:
    """The text of a template's file with the name and the title in it."""
    if file.suffix == ".ipynb":
        title = json.dumps(title, ensure_ascii=False)[1:-1]
    return file.read_text(encoding="utf-8").replace(CASE, case).replace(TITLE, title)


def _move(sources: list[Path], targets: list[Path]) -> None:
    """Move all sources, or none."""
    moved = []
    try:
        for source, target in zip(sources, targets, strict=True):
            os.rename(source, target)
            moved.append((target, source))
    except OSError:
        for target, source in moved:
            os.rename(target, source)
        raise


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m utils.new", description="Lay out a new notebook with its tests.")
    parser.add_argument("case", help="the name of its folder, such as my_model")
    parser.add_argument("title", help="the title of the notebook")
    options = parser.parse_args(arguments)
    try:
        places = [str(path.relative_to(ROOT)) for path in lay_out(options.case, options.title)]
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(NEXT.format(places=", ".join(places), case=options.case, python=Path(sys.executable).name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
