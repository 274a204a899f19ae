"""Windows refuses paths of 260 characters and more unless long paths are switched on, and packages bring long ones.

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

LIMIT = 259
LONGEST = 200  # characters of the longest file of a package, from `.venv` on: a licence of torch's; a test measures it
KEY = r"SYSTEM\CurrentControlSet\Control\FileSystem"


def refusal(root: Path) -> str | None:
    """Why the environment does not fit into the folder `root` on this system, if so."""
    room = LIMIT - LONGEST - 1
    if os.name != "nt" or len(str(root)) <= room or switched_on():
        return None
    return (
        f"{root} has {len(str(root))} characters, and Windows allows {LIMIT} for a path, which leaves {room} for it: "
        "move the folder to a shorter place such as C:\\notebooks, or switch long paths on (LongPathsEnabled)."
    )


def switched_on() -> bool:
    """Whether Windows takes long paths."""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, KEY) as key:
            return winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1
    except OSError:
        return False
