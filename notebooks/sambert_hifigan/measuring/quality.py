"""Measures the quality of speech: held-out sentences in every voice, at every precision.

Three networks that were trained on recordings of people judge the speech (see `utils.speech.listening`): a speech
recogniser transcribes it, a speaker encoder identifies the voice, and a MOS predictor scores the quality. The negative
controls are texts with shuffled characters, another voice, and Griffin-Lim in place of the vocoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from pypinyin import lazy_pinyin
from tqdm import tqdm

from notebooks.sambert_hifigan.data import Trial
from notebooks.sambert_hifigan.network.reference import Reference
from notebooks.sambert_hifigan.pipeline import Synthesizer
from notebooks.sambert_hifigan.pipeline.normalise import normalise
from utils import compare
from utils.speech import judging
from utils.speech.judging import DISTANCE, OPINION, RIGHT_VOICE, SIMILARITY, Recognise, error_rate, ranking, transcripts
from utils.speech.speaker_encoder import Voiceprint, resampled
from utils.speech.spectra import griffin_lim, mean_mel_distance

CHARACTERS, SYLLABLES = "character error rate", "syllable error rate"  # syllables: without tones
BETTER = {
    CHARACTERS: "lower",
    SYLLABLES: "lower",
    RIGHT_VOICE: "higher",
    SIMILARITY: "higher",
    OPINION: "higher",
    DISTANCE: "lower",
}
CONTROLS = {
    CHARACTERS: "its characters in another order",
    SYLLABLES: "its characters in another order",
    RIGHT_VOICE: "another voice",
    SIMILARITY: "another voice",
    OPINION: "Griffin-Lim in place of the vocoder",
    DISTANCE: "another sentence",
}
# The tolerated difference from PyTorch. Inaudible rounding, also that of another processor, changes up to four of 133
# recognised characters.
MARGINS = {CHARACTERS: 0.05, SYLLABLES: 0.05, SIMILARITY: 0.02, OPINION: 0.1}
MAX_ERROR_RATE = 0.15  # of characters, for PyTorch
MIN_RIGHT_VOICES = 0.9  # share of the sentences
MAX_MEL_DISTANCE_DB = 3.0  # from PyTorch


class Voice(Protocol):
    """What is measured. Both methods return samples [S] float32 at 16 kHz."""

    def synthesize(self, trial: Trial) -> np.ndarray: ...

    def vocode(self, mel: np.ndarray) -> np.ndarray: ...  # mel: [M, F]


class ConvertedVoice:
    """A `pipeline.Synthesizer` as a `Voice`."""

    def __init__(self, synthesizer: Synthesizer) -> None:
        self.synthesizer = synthesizer

    def synthesize(self, trial: Trial) -> np.ndarray:
        return resampled(*self.synthesizer(trial.text, trial.speaker))

    def vocode(self, mel: np.ndarray) -> np.ndarray:
        sound = self.synthesizer.vocode(mel, np.random.default_rng(0))
        return resampled(sound, self.synthesizer.config["sample_rate"])


# --- intelligibility ---------------------------------------------------------------------------------------------


def characters(text: str) -> list[str]:
    """The characters of a text as `judging.characters` counts them, with the normaliser of the front end."""
    return judging.characters(text, normalise)


def syllables(text: str) -> list[str]:
    """The syllables of a text without tones, so that homophones count as equal."""
    return lazy_pinyin("".join(characters(text)), errors=list)


def shuffled(text: str, rng: np.random.Generator) -> str:
    """A negative control: the characters of a text in random order."""
    return "".join(rng.permutation(characters(text)))


# --- the table ----------------------------------------------------------------------------------------------------


class Judge:
    """Measures the sounds of some trials.

    recognise: `listening.Recogniser`. voiceprint: the speaker encoder. opinion: `listening.MOS`. known: the embeddings
    of two or more voices by name. Raises ValueError for fewer, since one voice is always the nearest.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        recognise: Recognise,
        voiceprint: Voiceprint,
        opinion: Callable[[np.ndarray], float],
        known: Mapping[str, np.ndarray],
    ) -> None:
        if len(known) < 2:
            raise ValueError("One voice alone is always the right one. Let `known` hold others, too.")
        self.trials, self.recognise, self.voiceprint = trials, recognise, voiceprint
        self.opinion, self.known = opinion, known
        self.texts = [trial.text for trial in trials]
        self.speakers = [trial.speaker for trial in trials]

        # the negative controls: another voice, and a shuffled text
        names = list(known)
        self.other_speakers = [names[(names.index(name) + 1) % len(names)] for name in self.speakers]
        rng = np.random.default_rng(0)
        self.shuffled_texts = [shuffled(text, rng) for text in self.texts]

    def measure(self, sounds: Sequence[np.ndarray], label: str = "") -> tuple[dict[str, float], dict[str, float]]:
        """The metrics of the trials' sounds, and the metrics of the same sounds with wrong texts and voices.

        label: of the progress bar.
        """
        transcribed = transcripts(sounds, self.recognise, label)
        voices = np.stack([self.voiceprint.embed(sound) for sound in sounds])  # [n, 256]
        opinion = float(np.mean([self.opinion(sound) for sound in sounds]))

        def metrics(texts: Sequence[str], speakers: Sequence[str]) -> dict[str, float]:
            first, similarity = ranking(voices, speakers, self.known)
            return {
                CHARACTERS: error_rate(transcribed, texts, characters),
                SYLLABLES: error_rate(transcribed, texts, syllables),
                RIGHT_VOICE: first,
                SIMILARITY: similarity,
                OPINION: opinion,
            }

        return metrics(self.texts, self.speakers), metrics(self.shuffled_texts, self.other_speakers)


def table(judge: Judge, voices: Mapping[str, Voice], reference: Reference, teacher: float | None = None) -> list[dict]:
    """Quality rows of the voices by precision, of the PyTorch reference, and of all negative controls.

    A precision may be worse than the reference by the margin of the metric. The character error rate of the reference
    itself is at most MAX_ERROR_RATE, or five points above that of the teacher, if it is given.
    """
    # the reference and the negative controls
    mels = [list(reference.mels(*trial)) for trial in tqdm(judge.trials, desc="PyTorch reads", mininterval=1)]
    sounds = [np.concatenate([reference.vocode(mel) for mel in trial_mels]) for trial_mels in mels]
    baseline, controls = judge.measure(sounds, "PyTorch is heard")
    baseline[DISTANCE] = 0.0
    controls[OPINION] = float(np.mean([judge.opinion(griffin_lim(sound)) for sound in sounds]))
    controls[DISTANCE] = mean_mel_distance([*sounds[1:], sounds[0]], sounds)

    # every precision
    values = {}
    for name, voice in voices.items():
        synthesized = [voice.synthesize(trial) for trial in tqdm(judge.trials, desc=f"{name} speaks", mininterval=1)]
        values[name], _ = judge.measure(synthesized, f"{name} is heard")
        vocoded = [np.concatenate([voice.vocode(mel) for mel in trial_mels]) for trial_mels in mels]
        values[name][DISTANCE] = mean_mel_distance(vocoded, sounds)

    # the rows
    thresholds = {RIGHT_VOICE: MIN_RIGHT_VOICES, DISTANCE: MAX_MEL_DISTANCE_DB}
    for metric, margin in MARGINS.items():
        thresholds[metric] = baseline[metric] + (-margin if BETTER[metric] == "higher" else margin)
    rows = []
    for metric, better in BETTER.items():
        for name, metrics in values.items():
            row = compare.quality(metric, name, metrics[metric], baseline[metric], thresholds[metric], better)
            rows.append(row)
        rows.append(compare.control(metric, CONTROLS[metric], controls[metric], thresholds[metric], better))
    rate, max_rate = baseline[CHARACTERS], MAX_ERROR_RATE
    if teacher is not None:
        max_rate = max(max_rate, teacher + 0.05)
        rows.append(compare.quality(CHARACTERS, "the teacher", teacher, None, None, "lower"))
    return [*rows, compare.quality(CHARACTERS, "PyTorch", rate, rate, max_rate, "lower")]
