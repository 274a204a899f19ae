"""Is it understood, who speaks, how does it sound? Held-out sentences in every voice, at every precision.

A recogniser writes down what it hears, an encoder tells the voice, a predictor of listeners' opinions the quality (see
`listening`); all were trained on people, and know nothing of this model. The controls must lose: the text with its
characters in another order, another voice, and Griffin-Lim in place of the vocoder.
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
from utils.speech.judging import DISTANCE, FIRST, OPINION, SIMILARITY, Recognise, error_rate, ranking, transcripts
from utils.speech.speaker_encoder import Voiceprint, resampled
from utils.speech.spectra import griffin_lim, mean_mel_distance

CHARACTERS, SYLLABLES = "character error rate", "syllable error rate"  # syllables: without tones
BETTER = {
    **{CHARACTERS: "lower", SYLLABLES: "lower", FIRST: "higher", SIMILARITY: "higher"},
    **{OPINION: "higher", DISTANCE: "lower"},
}
CONTROLS = {
    **dict.fromkeys((CHARACTERS, SYLLABLES), "its characters in another order"),
    **dict.fromkeys((FIRST, SIMILARITY), "another voice"),
    **{OPINION: "Griffin-Lim in place of the vocoder", DISTANCE: "another sentence"},
}
# How much worse than PyTorch one may be. Rounding that nobody hears, also that of another processor, lets a recogniser
# take up to four of 133 characters for others.
MARGINS = {CHARACTERS: 0.05, SYLLABLES: 0.05, SIMILARITY: 0.02, OPINION: 0.1}
UNDERSTOOD, RECOGNISED = 0.15, 0.9  # error rate of characters that PyTorch may have; share of right voices at least
NEAR = 3.0  # dB of mel distance to PyTorch, at most


class Voice(Protocol):
    """What is judged: says trials, and turns mel spectrograms [M, F] to sound, both [S] float32 at 16 kHz."""

    def say(self, trial: Trial) -> np.ndarray: ...

    def vocode(self, mel: np.ndarray) -> np.ndarray: ...


class Converted:
    """A `pipeline.Synthesizer`."""

    def __init__(self, synthesizer: Synthesizer) -> None:
        self.synthesizer = synthesizer

    def say(self, trial: Trial) -> np.ndarray:
        return resampled(*self.synthesizer(trial.text, trial.speaker))

    def vocode(self, mel: np.ndarray) -> np.ndarray:
        sound = self.synthesizer.vocode(mel, np.random.default_rng(0))
        return resampled(sound, self.synthesizer.config["sample_rate"])


# --- what is understood -------------------------------------------------------------------------------------------


def characters(text: str) -> list[str]:
    """The characters of a text as `judging.characters` counts them, with the normaliser of the front end."""
    return judging.characters(text, normalise)


def syllables(text: str) -> list[str]:
    """The syllables of a text without their tones: what is written differently and sounds alike is the same."""
    return lazy_pinyin("".join(characters(text)), errors=list)


def shuffled(text: str, rng: np.random.Generator) -> str:
    """A control: the characters of a text in another order."""
    return "".join(rng.permutation(characters(text)))


# --- the table ----------------------------------------------------------------------------------------------------


class Judge:
    """Measures sounds of some trials.

    recognise: `listening.Recogniser`; opinion: `listening.MOS`; known: the embedding of every voice, two or
    more. Raises ValueError for fewer, which nothing could be told apart from.
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
        rng, names = np.random.default_rng(0), list(known)
        self.texts, self.speakers = [trial.text for trial in trials], [trial.speaker for trial in trials]
        self.others = [names[(names.index(name) + 1) % len(names)] for name in self.speakers]  # the wrong ones
        self.jumbled = [shuffled(text, rng) for text in self.texts]

    def measure(self, sounds: Sequence[np.ndarray], what: str = "") -> tuple[dict[str, float], dict[str, float]]:
        """All metrics of the trials' sounds, and of the same sounds held against wrong texts and voices."""
        heard = transcripts(sounds, self.recognise, what)
        voices = np.stack([self.voiceprint.embed(sound) for sound in sounds])
        opinion = float(np.mean([self.opinion(sound) for sound in sounds]))
        values = []
        for texts, speakers in ((self.texts, self.speakers), (self.jumbled, self.others)):
            rates = [error_rate(heard, texts, units) for units in (characters, syllables)]
            values.append(dict(zip(BETTER, [*rates, *ranking(voices, speakers, self.known), opinion], strict=False)))
        return values[0], values[1]


def table(judge: Judge, voices: Mapping[str, Voice], reference: Reference, teacher: float | None = None) -> list[dict]:
    """Quality rows of the voices by precision, with the unquantised PyTorch reference, and of all controls.

    A precision may be its margin worse than the reference. The reference itself must be understood: its error rate of
    characters is at most UNDERSTOOD, or five points above that of the teacher, if given.
    """
    mels = [list(reference.mels(trial)) for trial in tqdm(judge.trials, desc="PyTorch reads", mininterval=1)]
    sounds = [np.concatenate([reference.vocode(mel) for mel in made]) for made in mels]
    wanted, wrong = judge.measure(sounds, "PyTorch is heard")
    wrong[OPINION] = float(np.mean([judge.opinion(griffin_lim(sound)) for sound in sounds]))
    wrong[DISTANCE] = mean_mel_distance([*sounds[1:], sounds[0]], sounds)
    found = {}
    for name, voice in voices.items():
        said = [voice.say(trial) for trial in tqdm(judge.trials, desc=f"{name} speaks", mininterval=1)]
        found[name], _ = judge.measure(said, f"{name} is heard")
        again = [np.concatenate([voice.vocode(mel) for mel in made]) for made in mels]
        found[name][DISTANCE] = mean_mel_distance(again, sounds)
    goals = {
        metric: wanted[metric] + (-margin if BETTER[metric] == "higher" else margin)
        for metric, margin in MARGINS.items()
    }
    goals |= {FIRST: RECOGNISED, DISTANCE: NEAR}
    wanted[DISTANCE] = 0.0
    rows = []
    for metric, better in BETTER.items():
        for name, x in found.items():
            rows.append(compare.quality(metric, name, x[metric], wanted[metric], goals[metric], better))
        rows.append(compare.control(metric, CONTROLS[metric], wrong[metric], goals[metric], better))
    rate, aim = wanted[CHARACTERS], UNDERSTOOD
    if teacher is not None:
        aim = max(aim, teacher + 0.05)
        rows.append(compare.quality(CHARACTERS, "the teacher", teacher, None, None, "lower"))
    return [*rows, compare.quality(CHARACTERS, "PyTorch", rate, rate, aim, "lower")]
