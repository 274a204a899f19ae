"""The manifest of a bundle: the machine that the bundle is for, and the hash of every wheel and model file in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from utils.files import sha256
from utils.setup.systems import here

FOLDER = "bundle"  # inside the archive: manifest.json and wheels/


def machine() -> dict[str, str]:
    """What wheels depend on: the system, as `utils.setup.systems` names it, and the Python (as `3.11`)."""
    return {"platform": here(), "python": "{}.{}".format(*sys.version_info)}


def check(root: Path) -> str:
    """Compare the bundle unpacked in `root` with this machine and with its own hashes; returns a note.

    Raises ValueError when the bundle is for another platform or Python, is incomplete or damaged.
    """
    try:
        manifest = json.loads((root / FOLDER / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"The bundle has no readable manifest ({error}): unpack the archive again.") from error
    for what, value in machine().items():
        if manifest[what] != value:
            raise ValueError(
                f"This bundle was made for {what} {manifest[what]}, and this is {value}: make one "
                "for this one (`make bundle SYSTEM=...`), or name another Python (`make env PYTHON=...`)."
            )
    for name, expected in manifest["files"].items():
        file = root / name
        if not file.is_file():
            raise ValueError(f"The bundle lacks {name}: unpack the archive again.")
        if sha256(file) != expected:
            raise ValueError(f"The bundle's {name} is damaged (its hash differs): copy and unpack it again.")
    return f"{len(manifest['files'])} files as they were packed"
