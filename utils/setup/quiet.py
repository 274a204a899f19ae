"""Keeps the environment from calling home: what our kernels, tests and demos run sends no telemetry.

It writes a start-up file into the environment's own site-packages (so no file of the reader's home is
touched) and settings for JupyterLab's page. Standard library only.
"""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

# OpenVINO and NNCF fall back to their own silent stubs when the telemetry package cannot be imported; its
# other switches are a file in the home and CI=true, which other programs heed, too.
START = '''"""No telemetry, unless variables are set by hand or quiet.pth is removed (utils/setup/quiet.py)."""
import os
import sys

for _name, _value in {
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}.items():
    os.environ.setdefault(_name, _value)
sys.modules.setdefault("openvino_telemetry", None)
'''
LAB = {
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
    "@jupyterlab/extensionmanager-extension:plugin": {"enabled": False},  # it lists an index's packages
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
}


def packages(venv: Path) -> Path:
    """The site-packages folder of the virtual environment `venv`, made by this Python."""
    scheme = "nt" if os.name == "nt" else "posix_prefix"
    return Path(sysconfig.get_path("purelib", scheme, {"base": str(venv), "platbase": str(venv)}))


def write(venv: Path) -> None:
    """Write the start-up file and JupyterLab's settings into the virtual environment `venv`."""
    folder = packages(venv)
    (folder / "_quiet.py").write_text(START, encoding="utf-8")
    (folder / "quiet.pth").write_text("import _quiet\n", encoding="utf-8")
    settings = venv / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(LAB, indent=1), encoding="utf-8")
