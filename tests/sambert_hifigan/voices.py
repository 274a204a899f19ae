"""Small random voices of every kind in checkpoint folders, with the standard tables of symbols."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, save_acoustic
from notebooks.sambert_hifigan.network.vocoder import Generator, save_vocoder
from notebooks.sambert_hifigan.pipeline.frontend import standard_tables
from tests.sambert_hifigan.networks import NSF, acoustic, vocoder

NAMES = ["Anna", "Bao"]
RATE = 2400
SIZES = {table: len(entries) for table, entries in standard_tables(NAMES).items()}


class Made(dict):
    """By kind what `make(kind)` made when it was first asked for."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self.make = make

    def __missing__(self, kind: str):
        self[kind] = self.make(kind)
        return self[kind]


def networks(kind: str = "plain") -> tuple[KanTtsSAMBERT, Generator]:
    """The acoustic model and the vocoder of a voice, as `voice` stores them."""
    made = acoustic(kind, **SIZES | {"max_len": 120})
    made.config["linguistic_unit"] = {"speaker_list": ",".join(NAMES)}
    spoken = vocoder(**({} if kind == "plain" else NSF))
    spoken.config["audio_config"] = {"sampling_rate": RATE}
    return made, spoken


def embedding(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(6).astype(np.float32)


def voice(folder: Path, kind: str = "plain") -> Path:
    """The checkpoint folder of a voice: `am`, `voc`, for SE the embeddings of NAMES; returns the folder."""
    made, spoken = networks(kind)
    save_acoustic(folder / "am", made)
    save_vocoder(folder / "voc", spoken)
    if kind == "se":
        (folder / "am" / "speakers").mkdir()
        for seed, name in enumerate(NAMES):
            np.save(folder / "am" / "speakers" / f"{name}.npy", embedding(seed))
    return folder
