"""Writes the files that the notebook shows and plays: `python -m notebooks.sambert_hifigan.training.samples`.

samples/recording.mp3 is a voice of the teacher that training has not seen. result.png and result.mp3 are made by tiny.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from notebooks.sambert_hifigan import convert, figures
from notebooks.sambert_hifigan.data import kokoro_spelling
from notebooks.sambert_hifigan.pipeline import Synthesizer
from notebooks.sambert_hifigan.training.speech import UNSEEN_VOICES
from utils import paths
from utils.speech.kokoro_teacher import SAMPLE_RATE_HZ, Teacher
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.sound import mp3

NOTEBOOK = paths.notebook_dir(__package__)
BIT_RATE = 48_000  # bits/s
PAUSE_S = 0.3  # after a sentence
TEXTS = "你好，很高兴认识你。", "请问，去火车站怎么走？", "祝你生日快乐，身体健康。"


def main() -> None:
    """Write all files."""
    synthesizer, teacher = Synthesizer(convert.prepare()), Teacher()
    pairs = zip(TEXTS, synthesizer.speakers[::2], strict=True)
    sentences = [spoken for text, speaker in pairs for spoken in synthesizer.stream(text, speaker)]
    figure = figures.mel_figure(sentences[1], synthesizer.frontend, source=True)
    figure.savefig(NOTEBOOK / "result.png", dpi=90)
    write(NOTEBOOK / "result.mp3", [spoken.samples for spoken in sentences], synthesizer.config["sample_rate"])
    style = teacher.styles[UNSEEN_VOICES[0]]
    spellings = [kokoro_spelling(synthesizer.frontend.read(text)) for text in HELD_OUT[4:8]]
    recording = NOTEBOOK / "samples" / "recording.mp3"
    recording.parent.mkdir(exist_ok=True)
    write(recording, [teacher(groups, style).samples for groups in spellings], SAMPLE_RATE_HZ)


def write(path: Path, sounds: list[np.ndarray], sample_rate: int) -> None:
    """Write sounds [S] in order, each followed by a pause, as MP3."""
    pause = np.zeros(int(PAUSE_S * sample_rate), np.float32)
    pieces = [piece for samples in sounds for piece in (samples, pause)]
    path.write_bytes(mp3(np.concatenate(pieces), sample_rate, BIT_RATE))


if __name__ == "__main__":
    main()
