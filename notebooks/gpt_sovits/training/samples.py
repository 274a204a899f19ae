"""Makes the notebook's voices and sounds: `python -m notebooks.gpt_sovits.training.samples`, once tiny/ is trained.

samples/NAME.mp3 is a voice to clone, synthesized by the teacher, with its words in NAME.txt. The sentences, and the
voices whose names begin with new_, are in no training. samples/owners has the sentences of SHOWN, synthesized by the
teacher in the voices that are cloned. result.png compares these with the clones. In result.mp3 you hear for each voice
the recording, the clone of SHOWN and its owner with the same sentence.

The voices and sentences of SHOWN were chosen because Whisper understands their clones word for word, which it often
does not. `check_understood` raises an error when that is no longer so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from notebooks.gpt_sovits import convert, figures
from notebooks.gpt_sovits.data import speech
from notebooks.gpt_sovits.data.voices import OWNERS, SAMPLES, read_voices
from notebooks.gpt_sovits.measuring.quality import UNITS
from notebooks.gpt_sovits.pipeline import VoiceCloner, audio_io
from notebooks.gpt_sovits.pipeline.frontend import Frontend
from utils import paths
from utils.models.llm import FP32_PROPERTIES
from utils.speech import listening
from utils.speech.kokoro_teacher import Teacher
from utils.speech.sound import mp3, same_loudness
from utils.speech.speaker_encoder import resampled

FOLDER = paths.notebook_dir(__package__)
BIT_RATE = 64_000  # bits per second
PAUSE_S = 0.5  # after a sound
KNOWN = ("af_heart", "am_michael", "mixture0", "mixture1", "zf_xiaobei", "zm_yunjian")
LANGUAGES = {"mixture1": "zh"}  # of voices whose name does not say it
WORDS = {
    "en": (
        "My cousin keeps three bees in a jar, and nobody dares to ask her why.",
        "The last train to the coast leaves from the second platform.",
        "There is a hole in the fence, just large enough for a fox.",
        "We counted the stars until the clouds came in from the lake.",
        "Her first job was to carry ice up four flights of stairs.",
        "If you turn the key twice, the old radio begins to sing.",
        "Nobody told the gardener that the tulips were made of glass.",
    ),
    "zh": (
        "村口的老树下坐着三个下棋的老人，谁也不说话。",
        "她把昨天买的鱼放进冰箱，又出门去找那把雨伞。",
        "坐船过河只要十分钟，可是等船要等一个小时。",
        "弟弟画了一只蓝色的猫，贴在厨房的门上。",
        "山上的路很窄，我们走得很慢，到家天已经黑了。",
    ),
}


class Shown(NamedTuple):
    """A clone for the top of the notebook."""

    voice: str
    language: str  # of the text
    text: str


SHOWN = (
    Shown("af_heart", "en", "I have never said these words."),
    Shown("zm_yunjian", "zh", "我们明天再见。"),
)


def main() -> None:
    teacher = Teacher()
    record(teacher, SAMPLES)
    recognise = {
        shown.language: listening.Recogniser(listening.prepare_recogniser(), shown.language) for shown in SHOWN
    }
    show(teacher, recognise)


def show(teacher: Teacher, recognise: dict[str, Callable[[np.ndarray], str]]) -> None:
    """Write result.mp3, result.png and the files of OWNERS. Raises ValueError where a clone is not understood.

    recognise: speech recognition by language, a function of samples [S] at 16 kHz.
    """
    cloner, frontend = VoiceCloner(convert.prepare(), **FP32_PROPERTIES), Frontend()
    rate, voices = cloner.sample_rate, {voice.name: voice for voice in read_voices()}
    sounds, pairs = [], {}
    OWNERS.mkdir(exist_ok=True)
    for shown in SHOWN:
        voice = voices[shown.voice]
        clone, _ = cloner(shown.text, voice.recording, voice.words, shown.language, voice.language)
        owner = spoken(teacher, frontend, voice.name, shown.text, shown.language)
        for sound in (clone, owner):
            check_understood(resampled(sound, rate), shown, recognise[shown.language])
        (OWNERS / f"{shown.voice}.mp3").write_bytes(mp3(owner, rate, BIT_RATE))
        recording = audio_io.read(voice.recording).at(rate)
        sounds += [recording, clone, owner]
        pairs[shown.text] = {f"{voice.label}: the voice itself": owner, f"{voice.label}: the clone": clone}
    figures.compared_spectrograms(pairs, rate).savefig(FOLDER / "result.png", dpi=90)
    pause = np.zeros(int(PAUSE_S * rate), np.float32)
    joined = np.concatenate([x for samples in sounds for x in (same_loudness(samples, rate), pause)])
    (FOLDER / "result.mp3").write_bytes(mp3(joined, rate, BIT_RATE))


def check_understood(sound: np.ndarray, shown: Shown, recognise: Callable[[np.ndarray], str]) -> None:
    """Raise ValueError unless a recogniser writes down the words of `shown` for the sound [S] at 16 kHz."""
    units, transcript = UNITS[shown.language][1], recognise(sound)
    if units(transcript) != units(shown.text):
        raise ValueError(
            f"Speech recognition understands {transcript.strip()!r} in place of {shown.text!r} in the voice "
            f"{shown.voice}. Choose another sentence or voice for SHOWN."
        )


def spoken(teacher: Teacher, frontend: Frontend, name: str, text: str, language: str) -> np.ndarray:
    """The samples [S] of a text in a voice of the training, by the teacher."""
    voice = next(voice for voice in speech.training_voices(teacher.styles) if voice.name == name)
    line = speech.read(frontend, text, language)
    return teacher(line.letters, speech.style(teacher.styles, voice, language), speech.SAMPLE_RATE_HZ).samples


def record(teacher: Teacher, folder: Path) -> None:
    """Synthesize a sentence in every voice into `folder`, in the language of the voice."""
    folder.mkdir(exist_ok=True)
    frontend, sentences = Frontend(), {language: iter(texts) for language, texts in WORDS.items()}
    known = [voice for voice in speech.training_voices(teacher.styles) if voice.name in KNOWN]
    for prefix, group in (("", known), ("new_", speech.unseen_voices(teacher.styles))):
        for voice in group:
            native = "zh" if voice.name[0] in speech.NATIVE["zh"] else "en"
            language = LANGUAGES.get(voice.name, native)
            words = next(sentences[language])
            line = speech.read(frontend, words, language)
            style = speech.style(teacher.styles, voice, language)
            utterance = teacher(line.letters, style, speech.SAMPLE_RATE_HZ)
            file = folder / f"{prefix}{voice.name}.mp3"
            file.write_bytes(mp3(utterance.samples, speech.SAMPLE_RATE_HZ, BIT_RATE))
            file.with_suffix(".txt").write_text(words + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
