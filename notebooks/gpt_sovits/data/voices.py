"""The voices to clone: recordings with their words, in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from notebooks.gpt_sovits.pipeline.audio_io import Sound
from utils import paths

SAMPLES = paths.notebook_dir(__package__) / "samples"


class Voice(NamedTuple):
    """A recording to clone."""

    name: str
    recording: Sound
    words: str  # of the recording
    language: str  # of the words
    new: bool = False  # whether the voice is in no training
    speaker: np.ndarray | None = None  # [20480] float, v2Pro only


def read_voices(folder: Path = SAMPLES) -> list[Voice]:
    """The voices of a folder, by name: NAME.mp3 with its words in NAME.txt; names of new ones begin with new_.

    Raises ValueError for a recording without words, and a folder without recordings.
    """
    found = []
    for path in sorted(folder.glob("*.mp3")):
        if not (file := path.with_suffix(".txt")).is_file():
            raise ValueError(f"{path.name} has no {file.name} in {folder}. Write down there what is said.")
        words = file.read_text(encoding="utf-8").strip()
        language = "zh" if re.search("[一-龥]", words) else "en"
        found.append(Voice(path.stem, path, words, language, path.stem.startswith("new_")))
    if not found:
        raise ValueError(f"{folder} has no recordings (NAME.mp3). Name a folder with some.")
    return found
