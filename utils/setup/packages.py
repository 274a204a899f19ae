"""What set-up and bundle know about packages: the pins of requirements.txt, and where the CPU build of PyTorch is."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from utils.paths import ROOT

TORCH_CPU = "https://download.pytorch.org/whl/cpu"


def pin(name: str, requirements: Path = ROOT / "requirements.txt") -> str | None:
    """The exact requirement (`name==version`) that the requirements file has for `name`, if any."""
    match = re.search(rf"^{re.escape(name)}==[^\s;#]+", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return match and match.group()


def cpu_index_answers() -> bool:
    """Whether PyTorch's own index answers within five seconds."""
    try:
        with urllib.request.urlopen(f"{TORCH_CPU}/torch/", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
