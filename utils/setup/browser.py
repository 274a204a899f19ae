"""Where a Chromium-like browser is on this machine: the tests drive the demos with it. Standard library."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
WINDOWS = ("Google/Chrome/Application/chrome.exe", "Microsoft/Edge/Application/msedge.exe")
MACOS = ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium")
PLAYWRIGHT = ("chrome-linux*/chrome", "chrome-win*/chrome.exe", "chrome-mac*/*.app/Contents/MacOS/*")


def _places() -> list[tuple[Path, str]]:
    """Folders and patterns to look for in them: installed browsers first, then playwright's own download."""
    local = [Path(os.environ["LOCALAPPDATA"])] if os.environ.get("LOCALAPPDATA") else []
    programs = [Path(os.environ[x]) for x in ("PROGRAMFILES", "PROGRAMFILES(X86)") if os.environ.get(x)] + local
    caches = [x / "ms-playwright" for x in [*local, Path.home() / ".cache", Path.home() / "Library/Caches"]]
    if named := os.environ.get("PLAYWRIGHT_BROWSERS_PATH"):
        caches = [Path(named)]
    places = [(folder, pattern) for folder in programs for pattern in WINDOWS]
    places += [(Path("/Applications"), pattern) for pattern in MACOS]
    return places + [(folder, f"chromium-*/{pattern}") for folder in caches for pattern in PLAYWRIGHT]


def find() -> str | None:
    """The browser's path: what CHROMIUM names, the PATH, the usual places; None when there is none."""
    if named := os.environ.get("CHROMIUM"):
        return named
    for program in filter(None, map(shutil.which, NAMES)):
        return program
    for folder, pattern in _places():
        for program in sorted(folder.glob(pattern)) if folder.is_dir() else []:
            return str(program)
    return None


def command() -> str:
    """The command that installs a browser, for the message that none was found."""
    if shutil.which("apt-get"):
        return "sudo apt-get install chromium"
    return f"{sys.executable} -m playwright install chromium"
