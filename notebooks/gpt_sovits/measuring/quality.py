"""The quality of cloned speech: word errors, speaker similarity and predicted opinion scores at every precision.

The sentences are held out from training. A speech recogniser transcribes them, a speaker encoder compares the voices,
and a predictor of mean opinion scores rates the sound; all were trained on human speech (`utils.speech.listening`).
Voices that are in no training have rows of their own. The negative controls are phonemes in another order, another
voice's recording, another sentence's tokens, and Griffin-Lim in place of the synthesizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from tqdm import tqdm
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.data.sentences import HELD_OUT
from notebooks.gpt_sovits.data.voices import Voice, read_voices
from notebooks.gpt_sovits.network.pytorch_cloner import PyTorchCloner
from notebooks.gpt_sovits.pipeline import Utterance, VoiceCloner, audio_io, mandarin_phonemes
from notebooks.gpt_sovits.pipeline.audio_io import Sound
from utils import compare, report, select, weights
from utils.models import parts
from utils.models.llm import FP32_PROPERTIES
from utils.speech import judging, listening
from utils.speech.judging import DISTANCE, OPINION, RIGHT_VOICE, SIMILARITY, Recognise, error_rate, ranking, transcripts
from utils.speech.speaker_encoder import LOUDNESS, SAMPLE_RATE, Voiceprint, resampled
from utils.speech.spectra import griffin_lim, mel_distance

WORDS, CHARACTERS = "word error rate, English", "character error rate, Mandarin"
SAME = "tokens as in PyTorch"
KNOWN, NEW = "known voices", "new voices"  # new: in no training
BETTER = {
    WORDS: "lower",
    CHARACTERS: "lower",
    RIGHT_VOICE: "higher",
    SIMILARITY: "higher",
    OPINION: "higher",
    SAME: "higher",
    DISTANCE: "lower",
}
CONTROLS = {
    WORDS: "its phonemes in another order",
    CHARACTERS: "its phonemes in another order",
    RIGHT_VOICE: "another voice's recording",
    SIMILARITY: "another voice's recording",
    SAME: "another sentence's tokens",
    DISTANCE: "another sentence's tokens",
    OPINION: "Griffin-Lim in place of the synthesizer",
}
# How much worse than PyTorch a precision may be. Another rounding draws other tokens, as another seed does: with 24
# trials of tiny in each language, seeds alone move words by 0.03, characters by 0.05, the first voice by 0.05, opinions
# by 0.03
MARGINS = {WORDS: 0.2, CHARACTERS: 0.25, RIGHT_VOICE: 0.25, SIMILARITY: 0.05, OPINION: 0.15}
TARGETS = {  # thresholds that do not depend on PyTorch, by MODEL
    "tiny": {WORDS: 0.7, CHARACTERS: 0.85, RIGHT_VOICE: 0.4},
    "released": {WORDS: 0.2, CHARACTERS: 0.2, RIGHT_VOICE: 0.8},
}
GOALS = TARGETS["released"]  # the values at which a clone is useful, whatever the model
MAX_DISTANCE_DB = 3.0  # of mel spectra to PyTorch
MIN_AGREEMENT = {"FP32": 0.9, "FP16": 0.3, "INT8": 0.1}  # share of tokens before the first that differs
GREEDY = {"top_k": 1}
TRIALS = 24  # of each language in the examination
COMPARED_TRIALS = 8  # whose tokens and spectra are compared with those of PyTorch
Metric = tuple[str, str]  # its name, and KNOWN or NEW voices; "" for all


class Trial(NamedTuple):
    """A sentence and the voice to synthesize it in."""

    text: str
    language: str  # of UNITS
    voice: Voice


class Cloner(Protocol):
    """What is judged: `pipeline.VoiceCloner`, or a `PyTorchCloner`."""

    def stream(self, text: str, recording: Sound, words: str, *languages: str, **options) -> Iterable[Utterance]: ...


def trials(voices: Sequence[Voice], sentences: Mapping[str, Sequence[str]], count: int) -> list[Trial]:
    """`count` trials of every language: all sentences in turn, each time with the next voice."""
    return [
        Trial(texts[i % len(texts)], language, voices[(i + i // len(texts)) % len(voices)])
        for language, texts in sentences.items()
        for i in range(count)
    ]


def synthesize(cloner: Cloner, trial: Trial, seed: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """A trial's samples [S] float32 at 16 kHz, and its tokens [N]; options: of `stream`."""
    voice = trial.voice
    if voice.speaker is not None:
        options["speaker"] = voice.speaker
    arguments = trial.text, voice.recording, voice.words, trial.language, voice.language
    pieces = list(cloner.stream(*arguments, seed=seed, split="none", **options))
    sound = np.concatenate([piece.samples for piece in pieces])
    return resampled(sound, pieces[0].sample_rate), np.concatenate([piece.tokens for piece in pieces])


# --- metrics ---------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """The words of an English text as Whisper's authors count them: lower case, numbers as digits, no punctuation."""
    return [word for word in NORMALISED(text).split() if any(map(str.isalnum, word))]


NORMALISED = EnglishTextNormalizer({})  # without its table of British and American spellings


def characters(text: str) -> list[str]:
    """The characters of a text as `judging.characters` counts them, with the normaliser of the front end."""
    return judging.characters(text, mandarin_phonemes.normalise)


UNITS = {"en": (WORDS, words), "zh": (CHARACTERS, characters)}


def agreement(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """How many tokens are equal before the first that differs, as a share of the longer sequence."""
    pairs = zip(ours, theirs, strict=False)
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return equal / max(len(ours), len(theirs))


def shuffled_phonemes(rng: np.random.Generator) -> Callable[[list], list]:
    """A negative control: puts the phonemes of every piece (`frontend.Piece`) in another order."""
    return lambda pieces: [piece._replace(phones=rng.permutation(piece.phones)) for piece in pieces]


def prepared_judge(trials: Sequence[Trial]) -> Judge:
    """A judge with Whisper, Resemblyzer's speaker encoder and DNSMOS, which the first call converts."""
    recogniser = listening.prepare_recogniser()
    recognise = {language: listening.Recogniser(recogniser, language) for language in UNITS}
    voiceprint = Voiceprint(listening.prepare_encoder())
    return Judge(trials, recognise, voiceprint, listening.MOS(weights.fetch("dnsmos")))


class Judge:
    """Measures sounds [S] at 16 kHz, one of each trial.

    recognise: `listening.Recogniser` by language; opinion: `listening.MOS`. others: the same sentences, each with the
    recording of the next voice, which is a negative control. Raises ValueError for trials of a single voice, which
    would always be the nearest, and for a language without a recogniser.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        recognise: Mapping[str, Recognise],
        voiceprint: Voiceprint,
        opinion: Callable[[np.ndarray], float],
    ) -> None:
        voices = {trial.voice.name: trial.voice for trial in trials}
        if len(voices) < 2:
            raise ValueError("One voice alone is always the right one. Let the trials have others, too.")
        if unknown := {trial.language for trial in trials} - (UNITS.keys() & recognise.keys()):
            raise ValueError(f"Nobody listens to {', '.join(sorted(unknown))}. Leave out these sentences.")
        self.trials, self.recognise, self.voiceprint, self.opinion = trials, recognise, voiceprint, opinion
        self.right = [trial.voice.name for trial in trials]
        following = dict(zip(voices, [*voices.values()][1:] + [*voices.values()][:1], strict=True))
        self.others = [trial._replace(voice=following[trial.voice.name]) for trial in trials]
        self.known = {name: self._embed(audio_io.read(x.recording).at(SAMPLE_RATE)) for name, x in voices.items()}
        self.groups = {
            KNOWN: [i for i, trial in enumerate(trials) if not trial.voice.new],
            NEW: [i for i, trial in enumerate(trials) if trial.voice.new],
        }

    def errors(self, sounds: Sequence[np.ndarray], what: str = "") -> dict[Metric, float]:
        """The error rates of words and characters in the transcripts; a bar shows the progress."""
        rates = {}
        for language, (metric, units) in UNITS.items():
            if indices := [i for i, trial in enumerate(self.trials) if trial.language == language]:
                texts = [self.trials[i].text for i in indices]
                recognise = self.recognise[language]
                recognised = transcripts([sounds[i] for i in indices], recognise, f"{what}, {language}")
                rates[metric, ""] = error_rate(recognised, texts, units)
        return rates

    def similarity(self, sounds: Sequence[np.ndarray]) -> dict[Metric, float]:
        """How often the right voice is the nearest, and the mean cosine with its recording."""
        embeddings, values = np.stack([self._embed(sound) for sound in sounds]), {}
        for group, indices in self.groups.items():
            if indices:
                rank = ranking(embeddings[indices], [self.right[i] for i in indices], self.known)
                values[RIGHT_VOICE, group], values[SIMILARITY, group] = rank
        return values

    def cosines(self, sound: np.ndarray) -> dict[str, float]:
        """The cosine of a sound's voice with that of every recording, by name."""
        embedding = self._embed(sound)
        return {name: float(embedding @ known) for name, known in self.known.items()}

    def opinions(self, sounds: Sequence[np.ndarray]) -> dict[Metric, float]:
        """The mean opinion of listeners, from 1 to 5."""
        return {(OPINION, ""): float(np.mean([self.opinion(sound) for sound in sounds]))}

    def measure(self, sounds: Sequence[np.ndarray], what: str = "") -> dict[Metric, float]:
        """All metrics that need the sounds alone."""
        return self.errors(sounds, what) | self.similarity(sounds) | self.opinions(sounds)

    def _embed(self, sound: np.ndarray) -> np.ndarray:
        """[256], at the same loudness for every sound, for the encoder depends on it."""
        level = max(1e-6, float(np.sqrt(np.square(sound).mean())))
        return self.voiceprint.embed((sound * (10 ** (LOUDNESS / 20) / level)).astype(np.float32))


# --- the table ----------------------------------------------------------------------------------------------------


def table(
    judge: Judge, factories: Mapping[str, Callable[[], Cloner]], pytorch: PyTorchCloner, targets: Mapping[str, float]
) -> list[dict]:
    """Quality rows of cloners, compared with the unquantised PyTorch one, and of all negative controls.

    factories: functions that build the cloners, by precision; one cloner is in memory at a time.

    A precision may be its margin worse than PyTorch, but no worse than the targets; rows of new voices have no
    threshold. Each cloner samples its own tokens. `fidelity` adds its rows of COMPARED_TRIALS.
    """
    trials = dict(enumerate(judge.trials))
    sounds = _synthesized(pytorch, trials, "PyTorch")
    shuffled = _synthesized(pytorch, trials, "a control", change=shuffled_phonemes(np.random.default_rng(0)))
    wanted = judge.measure(sounds, "PyTorch is recognised")
    others = _synthesized(pytorch, dict(enumerate(judge.others)), "another voice")
    controls = judge.errors(shuffled, "a control is recognised") | judge.similarity(others)
    controls |= judge.opinions([griffin_lim(sound) for sound in sounds])
    measured = {
        name: judge.measure(_synthesized(build(), trials, name), f"{name} is recognised")
        for name, build in factories.items()
    }
    some = dict(list(trials.items())[:: math.ceil(len(trials) / COMPARED_TRIALS)])
    counts = {(RIGHT_VOICE, group): len(indices) for group, indices in judge.groups.items()}
    return _rows(measured, wanted, controls, targets, counts) + fidelity(some, factories, pytorch)


def fidelity(
    trials: Mapping[int, Trial], factories: Mapping[str, Callable[[], Cloner]], pytorch: PyTorchCloner
) -> list[dict]:
    """Quality rows that say how close cloners are to PyTorch's; trials: by the seed of each.

    For the mel distance PyTorch synthesizes the tokens that a cloner sampled, with the same noise. For the agreement
    of tokens both decode greedily. The negative controls have the tokens of another trial.
    """
    expected, sampled = zip(*(synthesize(pytorch, trial, seed) for seed, trial in trials.items()), strict=True)
    expected_greedy = _greedy_tokens(pytorch, trials)
    others = _resynthesized(pytorch, trials, [sampled[-1], *sampled[:-1]])
    controls = {
        (SAME, ""): _mean(agreement, expected_greedy[1:] + expected_greedy[:1], expected_greedy),
        (DISTANCE, ""): _mean(mel_distance, others, expected),
    }
    measured = {}
    for name, build in factories.items():
        cloner = build()
        sounds, tokens = zip(*(synthesize(cloner, trial, seed) for seed, trial in trials.items()), strict=True)
        measured[name] = {
            (SAME, ""): _mean(agreement, _greedy_tokens(cloner, trials), expected_greedy),
            (DISTANCE, ""): _mean(mel_distance, sounds, _resynthesized(pytorch, trials, tokens)),
        }
        del cloner
    return _rows(measured, {(SAME, ""): 1.0, (DISTANCE, ""): 0.0}, controls, {}, {})


def _synthesized(cloner: Cloner, trials: Mapping[int, Trial], name: str, **options) -> list[np.ndarray]:
    """The samples of every trial; a bar shows the progress."""
    progress = tqdm(trials.items(), desc=f"{name} synthesizes", mininterval=1, disable=None)
    return [synthesize(cloner, trial, seed, **options)[0] for seed, trial in progress]


def _resynthesized(
    pytorch: PyTorchCloner, trials: Mapping[int, Trial], tokens: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The samples that PyTorch makes of given tokens, those of each trial."""
    pairs = zip(trials.items(), tokens, strict=True)
    return [synthesize(pytorch, trial, seed, tokens=[given])[0] for (seed, trial), given in pairs]


def _greedy_tokens(cloner: Cloner, trials: Mapping[int, Trial]) -> list[np.ndarray]:
    return [synthesize(cloner, trial, seed, **GREEDY)[1] for seed, trial in trials.items()]


def threshold(metric: str, precision: str, wanted: float, targets: Mapping[str, float]) -> float | None:
    """The threshold of a precision where PyTorch has `wanted`, None for a metric without one; targets: of TARGETS."""
    if metric == DISTANCE:
        return MAX_DISTANCE_DB
    if metric == SAME:
        return MIN_AGREEMENT.get(precision)
    if BETTER[metric] == "higher":
        return max(wanted - MARGINS[metric], targets.get(metric, -np.inf))
    return min(wanted + MARGINS[metric], targets.get(metric, np.inf))


def _rows(
    measured: Mapping[str, dict],
    wanted: Mapping[Metric, float],
    controls: Mapping[Metric, float],
    targets: Mapping[str, float],
    counts: Mapping[Metric, int],
) -> list[dict]:
    """counts: the numbers of trials that metrics are shares of."""
    rows = []
    for key in sorted(wanted, key=lambda key: list(BETTER).index(key[0])):
        (metric, group), better = key, BETTER[key[0]]
        name = f"{metric}, {group}" if group else metric
        thresholds = dict.fromkeys(measured)
        if group != NEW:
            thresholds = {precision: threshold(metric, precision, wanted[key], targets) for precision in measured}
        options = {"goal": None if group == NEW else GOALS.get(metric), "of": counts.get(key)}
        for precision, values in measured.items():
            limits = wanted[key], thresholds[precision], better
            rows.append(compare.quality(name, precision, values[key], *limits, **options))
        if group != NEW:
            easiest = (min if better == "higher" else max)(x for x in thresholds.values() if x is not None)
            rows.append(compare.control(name, CONTROLS[metric], controls[key], easiest, better))
    return rows


def _mean(measure: Callable, ours: Sequence, theirs: Sequence) -> float:
    return float(np.mean([measure(*pair) for pair in zip(ours, theirs, strict=True)]))


def factories_of(folders: Mapping[str, Path], device: str) -> dict[str, Callable[[], VoiceCloner]]:
    """Functions that build the cloners of IR folders, and "FP32": the folder "FP16" with FP32 arithmetic."""
    exact = partial(VoiceCloner, folders["FP16"], device, **FP32_PROPERTIES)
    return {"FP32": exact} | {name: partial(VoiceCloner, folder, device) for name, folder in folders.items()}


def main() -> None:
    model = select.model(list(convert.MODELS)).value
    pytorch = PyTorchCloner(weights.resolve(convert.MODELS[model]["checkpoint"]))
    factories = factories_of({name: convert.prepare(model, name) for name in parts.PRECISIONS}, "CPU")
    judge = prepared_judge(trials(read_voices(), HELD_OUT, TRIALS))
    report.save_examination("gpt_sovits", model, table(judge, factories, pytorch, TARGETS[model]))


if __name__ == "__main__":
    main()
