"""`python -m utils.speech.mandarin_copies` writes the reader of Mandarin into the pipelines that have a copy of it.

A pipeline is copied into other projects and imports nothing of this one. So each `notebooks/*/pipeline/mandarin` is an
identical copy of the master, the folder `mandarin` here. A new pipeline gets its copy once it has an empty folder.
"""

from __future__ import annotations

from pathlib import Path

from utils.files import replaced
from utils.paths import ROOT

MASTER = Path(__file__).with_name("mandarin")


def copies(root: Path = ROOT) -> list[Path]:
    """The folders of the copies."""
    return sorted(path for path in root.glob("notebooks/*/pipeline/mandarin") if path.is_dir())


def contents(folder: Path) -> dict[str, bytes]:
    """The modules of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.py"))}


def write(folder: Path) -> bool:
    """Make a folder a copy of the master; returns whether it was none."""
    wanted, there = contents(MASTER), contents(folder)
    for name in there.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        if there.get(name) != text:
            with replaced(folder / name) as partial:
                partial.write_bytes(text)
    return wanted != there


def main() -> None:
    for folder in copies():
        state = "rewritten" if write(folder) else "is a copy already"
        print(f"{folder.relative_to(ROOT)} {state}")


if __name__ == "__main__":
    main()
