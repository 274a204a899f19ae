"""How speech is judged: which words are recognised, and whose voice it is.

Recognisers, encoders and predictors are in `utils.speech.listening`, distances of sounds in `utils.speech.spectra`.
Sounds are [S] float32 in -1..1 at 16 kHz.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from tqdm import tqdm

from utils.speech.speaker_encoder import SAMPLE_RATE

Recognise = Callable[[np.ndarray], str]  # samples -> text
FIRST, SIMILARITY = "right voice first", "voice similarity"
OPINION, DISTANCE = "MOS, predicted", "mel distance to PyTorch (dB)"
GAP_S, LONGEST_S = 0.5, 27.0  # between sentences that are recognised together, and of all of them


def characters(text: str, normalise: Callable[[str], str]) -> list[str]:
    """What a Mandarin text says, character by character: no punctuation, Latin letters capital.

    normalise: writes numbers and symbols in characters, as the front end of the model does.
    """
    return re.findall(r"\w", normalise(text).upper())


def errors(truth: Sequence[str], heard: Sequence[str]) -> int:
    """How many insertions, deletions and substitutions turn one into the other (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(truth, 1):
        before, row[0] = row[0], i
        for j, found in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (wanted != found))
    return row[-1]


def packed(sounds: Sequence[np.ndarray]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Sounds joined to pieces of up to LONGEST_S seconds, each with the numbers of those in it.

    A recogniser that always reads 30 s takes a piece as quickly as a sentence.
    """
    gap = np.zeros(int(GAP_S * SAMPLE_RATE), np.float32)
    numbers: list[int] = []
    for i in range(len(sounds)):
        if numbers and sum(len(sounds[n]) + len(gap) for n in (*numbers, i)) > LONGEST_S * SAMPLE_RATE:
            yield numbers, np.concatenate([x for n in numbers for x in (sounds[n], gap)])
            numbers = []
        numbers.append(i)
    if numbers:
        yield numbers, np.concatenate([x for n in numbers for x in (sounds[n], gap)])


def transcripts(sounds: Sequence[np.ndarray], recognise: Recognise, what: str = "") -> list[tuple[list[int], str]]:
    """What is heard in each piece of `packed`, with the numbers of the sounds in it; a bar shows the progress."""
    return [(numbers, recognise(piece)) for numbers, piece in tqdm([*packed(sounds)], desc=what, mininterval=1)]


def error_rate(heard: Sequence[tuple[list[int], str]], texts: Sequence[str], units: Callable) -> float:
    """Errors in all transcripts for each unit (`characters` or `syllables`) of the texts that were said."""
    wrong = total = 0
    for numbers, text in heard:
        truth = [unit for n in numbers for unit in units(texts[n])]
        wrong, total = wrong + errors(truth, units(text)), total + len(truth)
    return wrong / total


def ranking(voices: np.ndarray, speakers: Sequence[str], known: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The share of voices [n, 256] whose speaker is the nearest of all known, and their mean cosine with it."""
    names = list(known)
    near = voices @ np.stack([known[name] / np.linalg.norm(known[name]) for name in names]).T
    wanted = np.array([names.index(speaker) for speaker in speakers])
    return float((near.argmax(1) == wanted).mean()), float(near[np.arange(len(wanted)), wanted].mean())
