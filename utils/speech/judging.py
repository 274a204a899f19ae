"""Metrics of speech: error rates of transcripts, and how well a speaker encoder identifies the voices.

The recogniser, the encoder and the MOS predictor are in `utils.speech.listening`, distances of spectrograms in
`utils.speech.spectra`. Sounds are samples [S] float32 in -1..1 at 16 kHz.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from tqdm import tqdm

from utils.speech.speaker_encoder import SAMPLE_RATE

Recognise = Callable[[np.ndarray], str]  # samples -> text
RIGHT_VOICE, SIMILARITY = "right voice first", "voice similarity"
OPINION, DISTANCE = "MOS, predicted", "mel distance to PyTorch (dB)"
GAP_S, MAX_PIECE_S = 0.5, 27.0  # between two sounds of a piece; of a piece, see `packed`


def characters(text: str, normalise: Callable[[str], str]) -> list[str]:
    """The characters of a normalised Mandarin text, without punctuation and with capital Latin letters.

    normalise: writes numbers and symbols as characters, as the front end of the model does.
    """
    return re.findall(r"\w", normalise(text).upper())


def edit_distance(truth: Sequence[str], transcript: Sequence[str]) -> int:
    """The number of insertions, deletions and substitutions from one sequence to the other (Levenshtein)."""
    distances = list(range(len(transcript) + 1))  # from the units of the truth so far to each start of the transcript
    for i, true_unit in enumerate(truth, 1):
        previous, distances = distances, [i]
        for j, unit in enumerate(transcript, 1):
            substitution = previous[j - 1] + (true_unit != unit)
            distances.append(min(previous[j] + 1, distances[j - 1] + 1, substitution))
    return distances[-1]


def packed(sounds: Sequence[np.ndarray]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Sounds joined to pieces of up to MAX_PIECE_S, each with the numbers of its sounds.

    Whisper always encodes 30 s, so that a piece takes it no longer than a sentence.
    """
    gap = np.zeros(int(GAP_S * SAMPLE_RATE), np.float32)
    numbers: list[int] = []
    for i in range(len(sounds)):
        length = sum(len(sounds[n]) + len(gap) for n in (*numbers, i))
        if numbers and length > MAX_PIECE_S * SAMPLE_RATE:
            yield numbers, np.concatenate([x for n in numbers for x in (sounds[n], gap)])
            numbers = []
        numbers.append(i)
    if numbers:
        yield numbers, np.concatenate([x for n in numbers for x in (sounds[n], gap)])


def transcripts(sounds: Sequence[np.ndarray], recognise: Recognise, label: str = "") -> list[tuple[list[int], str]]:
    """The transcript of each piece of `packed`, with the numbers of its sounds. label: of the progress bar."""
    return [
        (numbers, recognise(piece))
        for numbers, piece in tqdm([*packed(sounds)], desc=label, mininterval=1, disable=None)
    ]


def error_rate(transcribed: Sequence[tuple[list[int], str]], texts: Sequence[str], units: Callable) -> float:
    """The edit distance of all transcripts per unit of the true texts.

    transcribed: of `transcripts`. units: splits a text into units, such as characters or syllables.
    """
    errors = total = 0
    for numbers, text in transcribed:
        truth = [unit for n in numbers for unit in units(texts[n])]
        errors += edit_distance(truth, units(text))
        total += len(truth)
    return errors / total


def ranking(voices: np.ndarray, speakers: Sequence[str], known: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The share of voices [n, 256] that are nearest to their own speaker, and their mean cosine with the speaker.

    known: the embeddings of all speakers by name.
    """
    names = list(known)
    cosines = voices @ np.stack([known[name] / np.linalg.norm(known[name]) for name in names]).T  # [n, speakers]
    true = np.array([names.index(speaker) for speaker in speakers])  # [n]
    return float((cosines.argmax(1) == true).mean()), float(cosines[np.arange(len(true)), true].mean())
