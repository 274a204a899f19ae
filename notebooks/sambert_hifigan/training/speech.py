"""Synthesizes the training sentences with the teacher, and embeds the voices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from notebooks.sambert_hifigan.data import kokoro_spelling, training_sentences
from notebooks.sambert_hifigan.pipeline.frontend import Frontend
from notebooks.sambert_hifigan.training.alignment import TABLES, AlignedSentence
from utils import files
from utils.speech.kokoro_teacher import STYLE, Teacher
from utils.speech.listening import prepare_encoder
from utils.speech.speaker_encoder import Voiceprint
from utils.training.shares import side_by_side

VOICES = {  # voices of the checkpoint: the voice of Kokoro that each is
    "xiaobei": "zf_xiaobei",
    "xiaoxiao": "zf_xiaoxiao",
    "xiaoyi": "zf_xiaoyi",
    "yunjian": "zm_yunjian",
    "yunxi": "zm_yunxi",
    "yunyang": "zm_yunyang",
}
UNSEEN_VOICES = ("af_bella", "am_puck")  # in no mixture, to evaluate new voices
SENTENCES, MIXTURES = 1600, 40  # half of the sentences are in VOICES, half in mixtures
SEED = 0


def style(teacher: Teacher, number: int) -> tuple[str, np.ndarray]:
    """The voice of sentence `number`, one of VOICES or a mixture: its name, and its style [510, 256].

    A mixture has the prosody of one of VOICES. Its timbre lies between one of VOICES and any voice of the same sex.
    """
    names = list(VOICES)
    if number % 2 == 0:
        name = names[number // 2 % len(names)]
        return name, teacher.styles[VOICES[name]]
    mixture = number // 2 % MIXTURES
    rng = np.random.default_rng([SEED, mixture])
    prosody_voice = VOICES[names[mixture % len(names)]]
    sex = prosody_voice[1]  # "f" or "m"
    named = [voice for voice in VOICES.values() if voice[1] == sex]
    others = [voice for voice in teacher.styles if voice[1] == sex and voice not in UNSEEN_VOICES]
    weight, timbre = rng.uniform(0.1, 0.8), STYLE // 2
    mixed = teacher.styles[prosody_voice].copy()
    mixed[:, :timbre] = weight * teacher.styles[rng.choice(named)][:, :timbre]
    mixed[:, :timbre] += (1 - weight) * teacher.styles[rng.choice(others)][:, :timbre]
    return f"mixture{mixture}", mixed


def record(folder: Path, texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Synthesize the sentences of these numbers that are missing in `folder`, each into a file of its own."""
    missing = [number for number in numbers if not (folder / f"{number:04}.npz").exists()]
    if not missing:
        return
    teacher, frontend = Teacher(), Frontend(TABLES)
    for done, number in enumerate(missing):
        voice, voice_style = style(teacher, number)
        utterance = teacher(kokoro_spelling(frontend.read(texts[number])), voice_style)
        samples = (utterance.samples * 32767).round().astype(np.int16)
        content = {"text": texts[number], "voice": voice, "samples": samples}
        with files.replaced(folder / f"{number:04}.npz") as unfinished:
            np.savez(unfinished, **content, frames=utterance.frames, f0=utterance.f0)
        if done % 100 == 99:
            print(f"speech {number + 1}/{len(texts)}", flush=True)


def make_speech(work: Path, count: int = SENTENCES) -> list[Path]:
    """The files of the training sentences in work/speech. Two processes synthesize the missing ones."""
    folder = work / "speech"
    folder.mkdir(parents=True, exist_ok=True)
    texts = training_sentences(Frontend(TABLES), count, SEED)
    Teacher()  # fetches the model before two processes need it
    side_by_side(partial(record, folder, texts), count)
    return [folder / f"{number:04}.npz" for number in range(count)]


def embed_voices(work: Path, sentences: Sequence[AlignedSentence]) -> tuple[Tensor, dict[str, Tensor]]:
    """The speaker embedding of every sentence, [n, 256], and the mean embedding [256] of every voice."""
    path = work / f"voices-{len(sentences)}.npz"
    if not path.exists():
        voiceprint = Voiceprint(prepare_encoder())
        prints = np.stack([voiceprint.embed(x.sound) for x in tqdm(sentences, desc="voices", mininterval=5)])
        with files.replaced(path) as unfinished:
            np.savez(unfinished, prints=prints)
    with np.load(path, allow_pickle=False) as stored:
        prints = torch.from_numpy(stored["prints"])  # [n, 256]
    voices = np.array([sentence.voice for sentence in sentences])
    means = {voice: F.normalize(prints[voices == voice].mean(0), dim=0) for voice in dict.fromkeys(voices.tolist())}
    return prints, means
