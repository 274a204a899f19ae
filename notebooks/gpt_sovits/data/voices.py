"""The voices to clone: recordings with their words, in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from notebooks.gpt_sovits.pipeline.audio_io import Sound
from utils import paths

SAMPLES = paths.notebook_dir(__package__) / "samples"
OWNERS = SAMPLES / "owners"  # sentences by the owners of voices, to compare clones with: NAME.mp3
NEW = "new_"  # first letters of the names of voices that are in no training
ORIGINS = {"a": "American", "b": "British", "z": "Chinese"}  # first letter of a name of Kokoro's
KINDS = {"f": "woman", "m": "man"}  # the second one


class Voice(NamedTuple):
    """A recording to clone."""

    name: str
    recording: Sound
    words: str  # of the recording
    language: str  # of the words
    new: bool = False  # whether the voice is in no training
    speaker: np.ndarray | None = None  # [20480] float, v2Pro only

    @property
    def short_label(self) -> str:
        """The name for people: "Bella" for new_af_bella, "Mixture 0" for mixture0."""
        name = self.name.removeprefix(NEW)
        named = re.fullmatch("[a-z][fm]_(.+)", name)
        return re.sub(r"(?<=[a-z])(?=\d)", " ", named[1] if named else name).capitalize()

    @property
    def label(self) -> str:
        """The name with what is known of the voice: "Bella, American woman"."""
        kind = re.match("([abz])([fm])_", self.name.removeprefix(NEW))
        described = f", {ORIGINS[kind[1]]} {KINDS[kind[2]]}" if kind else ""
        return self.short_label + described


def read_voices(folder: Path = SAMPLES) -> list[Voice]:
    """The voices of a folder, by name: NAME.mp3 with its words in NAME.txt; names of new ones begin with NEW.

    Raises ValueError for a recording without words, and a folder without recordings.
    """
    found = []
    for path in sorted(folder.glob("*.mp3")):
        if not (file := path.with_suffix(".txt")).is_file():
            raise ValueError(f"{path.name} has no {file.name} in {folder}. Write down there what is said.")
        words = file.read_text(encoding="utf-8").strip()
        language = "zh" if re.search("[一-龥]", words) else "en"
        found.append(Voice(path.stem, path, words, language, path.stem.startswith(NEW)))
    if not found:
        raise ValueError(f"{folder} has no recordings (NAME.mp3). Name a folder with some.")
    return found
