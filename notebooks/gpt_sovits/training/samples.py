"""Makes the notebook's voices and sounds: `python -m notebooks.gpt_sovits.training.samples`, once tiny/ is trained.

samples/NAME.mp3 is a voice to clone, synthesized by the teacher, with its words in NAME.txt. The sentences, and the
voices whose names begin with new_, are in no training. result.png and result.mp3 have recordings of voices of the
training, each followed by its clone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from notebooks.gpt_sovits import convert, figures
from notebooks.gpt_sovits.data import speech
from notebooks.gpt_sovits.data.voices import SAMPLES, read_voices
from notebooks.gpt_sovits.pipeline import VoiceCloner, audio_io
from notebooks.gpt_sovits.pipeline.frontend import Frontend
from utils import paths
from utils.speech.kokoro_teacher import Teacher
from utils.speech.sound import mp3

FOLDER = paths.notebook_dir(__package__)
BIT_RATE = 64_000  # bits per second
PAUSE_S = 0.5  # after a sound
KNOWN = ("af_heart", "am_michael", "mixture0", "mixture1", "zf_xiaobei", "zm_yunjian")
LANGUAGES = {"mixture1": "zh"}  # of voices whose name does not tell
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
TEXTS = {"en": "I have never said these words.", "zh": "这句话我没有说过。"}  # short ones, which tiny synthesizes well


def main() -> None:
    teacher = Teacher()
    record(teacher, SAMPLES)
    cloner = VoiceCloner(convert.prepare())
    known = [voice for voice in read_voices() if not voice.new]
    shown = [next(voice for voice in known if voice.language == language) for language in TEXTS]
    sounds: dict[str, tuple[np.ndarray, int]] = {}
    for voice, (language, text) in zip(shown, TEXTS.items(), strict=True):
        recording = audio_io.read(voice.recording).at(cloner.sample_rate)
        sounds[f"{voice.name}: the recording"] = recording, cloner.sample_rate
        sounds[f"{voice.name}: its clone"] = cloner(text, voice.recording, voice.words, language)
    figures.spectrograms(sounds).savefig(FOLDER / "result.png", dpi=90)
    pause = np.zeros(int(PAUSE_S * cloner.sample_rate), np.float32)
    joined = np.concatenate([x for samples, _ in sounds.values() for x in (samples, pause)])
    (FOLDER / "result.mp3").write_bytes(mp3(joined, cloner.sample_rate, BIT_RATE))


def record(teacher: Teacher, folder: Path) -> None:
    """Synthesize a sentence in every voice into `folder`, in the language that it knows."""
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
