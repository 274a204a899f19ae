"""Makes what the lesson shows and plays: `python -m notebooks.sambert_hifigan.training.samples`, once tiny/ is trained.

samples/recording.mp3 is the teacher's voice that no mixture of the training had; result.png and result.mp3 are tiny's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from notebooks.sambert_hifigan import convert, figures
from notebooks.sambert_hifigan.data import spelled
from notebooks.sambert_hifigan.pipeline import Synthesizer
from notebooks.sambert_hifigan.training import __main__ as training
from utils import paths
from utils.speech.kokoro_teacher import RATE, Teacher
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.sound import mp3

ROOM = paths.notebook_dir(__package__)
BIT_RATE = 48_000
PAUSE = 0.3  # seconds after a sentence
TEXTS = "你好，很高兴认识你。", "请问，去火车站怎么走？", "祝你生日快乐，身体健康。"


def main() -> None:
    synthesizer, teacher = Synthesizer(convert.prepare()), Teacher()
    speakers, rate = synthesizer.speakers, synthesizer.config["sample_rate"]
    said = [
        spoken for text, name in zip(TEXTS, speakers[::2], strict=True) for spoken in synthesizer.stream(text, name)
    ]
    figures.mel_picture(said[1], synthesizer.frontend, source=True).savefig(ROOM / "result.png", dpi=90)
    write(ROOM / "result.mp3", [spoken.samples for spoken in said], rate)
    style = teacher.styles[training.UNSEEN[0]]
    recorded = [teacher(spelled(synthesizer.frontend.read(text)), style).samples for text in HELD_OUT[4:8]]
    (ROOM / "samples").mkdir(exist_ok=True)
    write(ROOM / "samples" / "recording.mp3", recorded, RATE)


def write(path: Path, sounds: list[np.ndarray], rate: int) -> None:
    """Sounds one after the other, each with its pause, as MP3."""
    pause = np.zeros(int(PAUSE * rate), np.float32)
    path.write_bytes(mp3(np.concatenate([x for samples in sounds for x in (samples, pause)]), rate, BIT_RATE))


if __name__ == "__main__":
    main()
