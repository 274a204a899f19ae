"""Makes what the lesson listens to: `python -m notebooks.gpt_sovits.training.samples`, once tiny/ is trained.

samples/NAME.mp3 is a voice to clone, said by the teacher, its words in NAME.txt; what the new_ ones and all the
sentences are, no training has heard. result.png and result.mp3: recordings of voices that training knows, and tiny's
clones after each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from notebooks.gpt_sovits import convert, figures
from notebooks.gpt_sovits.data import speech
from notebooks.gpt_sovits.measuring import quality
from notebooks.gpt_sovits.pipeline import VoiceCloner, audio_io
from notebooks.gpt_sovits.pipeline.frontend import Frontend
from utils import paths
from utils.speech.kokoro_teacher import Teacher
from utils.speech.sound import mp3

ROOM = paths.notebook_dir(__package__)
BIT_RATE = 64_000
PAUSE = 0.5  # seconds after a sound
KNOWN = ("af_heart", "am_michael", "mixture0", "mixture1", "zf_xiaobei", "zm_yunjian")
LANGUAGE = {"mixture1": "zh"}  # that one speaks who knows none by its name
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
TEXTS = {"en": "I have never said these words.", "zh": "这句话我没有说过。"}  # short ones, which tiny says well


def main() -> None:
    teacher = Teacher()
    record(teacher, quality.SAMPLES)
    cloner = VoiceCloner(convert.prepare())
    known = [voice for voice in quality.voices() if not voice.new]
    shown = [next(voice for voice in known if voice.language == language) for language in TEXTS]
    sounds: dict[str, tuple[np.ndarray, int]] = {}
    for voice, (language, text) in zip(shown, TEXTS.items(), strict=True):
        heard = audio_io.read(voice.recording).at(cloner.sample_rate)
        sounds[f"{voice.name}: the recording"] = heard, cloner.sample_rate
        sounds[f"{voice.name}: its clone"] = cloner(text, voice.recording, voice.words, language)
    figures.spectrograms(sounds).savefig(ROOM / "result.png", dpi=90)
    pause = np.zeros(int(PAUSE * cloner.sample_rate), np.float32)
    told = np.concatenate([x for samples, _ in sounds.values() for x in (samples, pause)])
    (ROOM / "result.mp3").write_bytes(mp3(told, cloner.sample_rate, BIT_RATE))


def record(teacher: Teacher, folder: Path) -> None:
    """Have every voice say a sentence into `folder`, in the language that it knows."""
    folder.mkdir(exist_ok=True)
    frontend, sentences = Frontend(), {language: iter(texts) for language, texts in WORDS.items()}
    voices = [voice for voice in speech.cast(teacher.styles) if voice.name in KNOWN]
    for prefix, group in (("", voices), ("new_", speech.unseen(teacher.styles))):
        for voice in group:
            native = "zh" if voice.name[0] in speech.NATIVE["zh"] else "en"
            language = LANGUAGE.get(voice.name, native)
            words = next(sentences[language])
            line = speech.read(frontend, words, language)
            said = teacher(line.letters, speech.style(teacher.styles, voice, language), speech.RATE)
            file = folder / f"{prefix}{voice.name}.mp3"
            file.write_bytes(mp3(said.samples, speech.RATE, BIT_RATE))
            file.with_suffix(".txt").write_text(words + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
