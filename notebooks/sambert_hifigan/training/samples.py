"""Writes the files that the notebook shows and plays: `python -m notebooks.sambert_hifigan.training.samples`.

samples/recording.mp3 is a voice of the teacher that training has not seen. result.png and result.mp3 are made by tiny.
A speech recogniser transcribes result.mp3 first, in INT8 and FP32: nothing is written unless all characters are right.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from notebooks.sambert_hifigan import convert, figures
from notebooks.sambert_hifigan.data import kokoro_spelling
from notebooks.sambert_hifigan.measuring.quality import characters
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer
from notebooks.sambert_hifigan.training.speech import UNSEEN_VOICES
from utils import paths
from utils.speech.kokoro_teacher import SAMPLE_RATE_HZ, Teacher
from utils.speech.listening import Recogniser, prepare_recogniser
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.sound import mp3, same_loudness
from utils.speech.speaker_encoder import resampled

NOTEBOOK = paths.notebook_dir(__package__)
BIT_RATE = 48_000  # bits/s
PAUSE_S = 0.3  # after a sentence
SHOWCASE = (  # sentences and voices of result.mp3; result.png shows the second
    ("早上好，昨天晚上睡得好吗？", "yunjian"),
    ("这件衣服的颜色很适合你。", "xiaobei"),
    ("春天来了，院子里的花都开了。", "yunxi"),
)
COLOURS = 128  # of result.png


def main() -> None:
    """Write all files."""
    synthesizer, teacher = Synthesizer(convert.prepare(), **FP32_PROPERTIES), Teacher()
    rate, whisper = synthesizer.config["sample_rate"], prepare_recogniser()
    spoken = [sentence for text, voice in SHOWCASE for sentence in synthesizer.stream(text, voice)]
    sounds = [same_loudness(sentence.samples, rate) for sentence in spoken]
    heard, said = resampled(joined(sounds, rate), rate), "".join(text for text, _ in SHOWCASE)
    for arithmetic in ("int8", "float32"):  # a sound that both understand is understood on other processors, too
        print(f"{arithmetic}: {check(heard, said, Recogniser(whisper, arithmetic=arithmetic))}")
    text, voice = SHOWCASE[1]
    title = f"{text} in the voice {voice}"
    figure = figures.mel_figure(spoken[1], synthesizer.frontend, bool(synthesizer.config["sines"]), title)
    write_picture(NOTEBOOK / "result.png", figure)
    write(NOTEBOOK / "result.mp3", sounds, rate)
    style = teacher.styles[UNSEEN_VOICES[0]]
    spellings = [kokoro_spelling(synthesizer.frontend.read(text)) for text in HELD_OUT[4:8]]
    recording = NOTEBOOK / "samples" / "recording.mp3"
    recording.parent.mkdir(exist_ok=True)
    write(recording, [teacher(groups, style).samples for groups in spellings], SAMPLE_RATE_HZ)


def check(samples: np.ndarray, text: str, recognise: Callable[[np.ndarray], str]) -> str:
    """The transcript of samples at 16 kHz. Raises ValueError when it has other characters than the text.

    Homophones are other characters, too. Punctuation does not count.
    """
    transcript = recognise(samples)
    if characters(transcript) != characters(text):
        raise ValueError(f"The recogniser writes {transcript!r} for {text!r}. Choose another sentence or voice.")
    return transcript


def write(path: Path, sounds: list[np.ndarray], sample_rate: int) -> None:
    """Write `joined` sounds as MP3."""
    path.write_bytes(mp3(joined(sounds, sample_rate), sample_rate, BIT_RATE))


def joined(sounds: list[np.ndarray], sample_rate: int) -> np.ndarray:
    """Sounds [S] in order, each followed by a pause, as one [sum of S and pauses]."""
    pause = np.zeros(int(PAUSE_S * sample_rate), np.float32)
    return np.concatenate([piece for samples in sounds for piece in (samples, pause)])


def write_picture(path: Path, figure) -> None:
    """Write a figure as a PNG file of few colours."""
    whole = io.BytesIO()
    figure.savefig(whole, format="png")
    Image.open(whole).convert("RGB").quantize(COLOURS).save(path, "png", optimize=True)


if __name__ == "__main__":
    main()
