"""Is it understood, who speaks, how does it sound? Held-out sentences in every voice, at every precision.

A recogniser writes down what it hears, an encoder tells the voice, a predictor of listeners' opinions the quality (see
`listening`); all were trained on people, and know nothing of this model. The controls must lose: the text with its
characters in another order, another voice, and Griffin-Lim in place of the vocoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from pypinyin import lazy_pinyin
from tqdm import tqdm
from transformers.audio_utils import mel_filter_bank

from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import SPEAKERS, Synthesizer, read_embedding, source_inputs
from notebooks.sambert_hifigan.pipeline.normalise import normalise
from utils import compare
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint, resampled

Recognise = Callable[[np.ndarray], str]  # samples at 16 kHz -> text
CHARACTERS, SYLLABLES = "character error rate", "syllable error rate"  # syllables: without tones
FIRST, SIMILARITY = "right voice first", "voice similarity"
OPINION, DISTANCE = "MOS, predicted", "mel distance to PyTorch (dB)"
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
GAP, LONGEST = 0.5, 27.0  # seconds between sentences that are recognised together, and of all of them
FFT, HOP, MELS = 1024, 200, 80  # of the mel spectrograms that are compared, at 16 kHz
FLOOR = 1e-3  # of their values; loud speech reaches 1, and what is 60 dB below is not heard
ITERATIONS = 32  # of Griffin-Lim


class Trial(NamedTuple):
    """A sentence and the voice that is to say it."""

    text: str
    speaker: str


class Voice(Protocol):
    """What is judged: says trials, and turns mel spectrograms [M, F] to sound, both [S] float32 at 16 kHz."""

    def say(self, trial: Trial) -> np.ndarray: ...

    def vocode(self, mel: np.ndarray) -> np.ndarray: ...


def trials(speakers: Sequence[str], count: int = len(HELD_OUT)) -> list[Trial]:
    """So many held-out sentences, by all voices in turn."""
    return [Trial(text, speakers[i % len(speakers)]) for i, text in enumerate(HELD_OUT[:count])]


class Converted:
    """A `pipeline.Synthesizer`."""

    def __init__(self, synthesizer: Synthesizer) -> None:
        self.synthesizer = synthesizer

    def say(self, trial: Trial) -> np.ndarray:
        return resampled(*self.synthesizer(trial.text, trial.speaker))

    def vocode(self, mel: np.ndarray) -> np.ndarray:
        sound = self.synthesizer.vocode(mel, np.random.default_rng(0))
        return resampled(sound, self.synthesizer.config["sample_rate"])


class Reference:
    """The unquantised networks of a checkpoint in PyTorch: what all values are held against.

    voice: a folder with `am` and `voc`. synthesizer: of the same voice; it gives front end, settings and speakers.
    """

    def __init__(self, voice: Path, synthesizer: Synthesizer) -> None:
        self.acoustic, self.vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
        self.frontend, self.config = synthesizer.frontend, synthesizer.config
        self._speakers = synthesizer.folder / SPEAKERS

    @torch.inference_mode()
    def mels(self, trial: Trial) -> Iterator[np.ndarray]:
        """What the vocoder is given, [M, F] for every sentence of a trial."""
        for sentence in self.frontend.sentences(trial.text):
            named = trial.speaker if not self.config["embedding"] else self.frontend.speakers[0]
            ids = self.frontend.ids(self.frontend.symbols(sentence, named))
            ling = torch.tensor([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")]).T[None]
            speaker = torch.tensor([ids["speaker"]])
            if size := self.config["embedding"]:
                found = read_embedding(self._speakers / f"{trial.speaker}.npy", size)
                speaker = torch.from_numpy(found).expand(1, ling.shape[1], -1)
            decoded = self.acoustic(ling, torch.tensor([ids["emotion"]]), speaker).decoded
            yield self.acoustic.finish(decoded)[0].numpy()

    @torch.inference_mode()
    def vocode(self, mel: np.ndarray) -> np.ndarray:
        source = []
        if self.config["sines"]:
            source = source_inputs(self.config, mel.shape[1], np.random.default_rng(0)).values()
        sound = self.vocoder(torch.from_numpy(mel)[None], *map(torch.from_numpy, source))
        return resampled(sound[0, 0].numpy(), self.config["sample_rate"])


# --- what is understood -------------------------------------------------------------------------------------------


def characters(text: str) -> list[str]:
    """What a text says, character for character: numbers in words, no punctuation, Latin letters capital."""
    return re.findall(r"\w", normalise(text).upper())


def syllables(text: str) -> list[str]:
    """The syllables of a text without their tones: what is written differently and sounds alike is the same."""
    return lazy_pinyin("".join(characters(text)), errors=list)


def errors(truth: Sequence[str], heard: Sequence[str]) -> int:
    """How many insertions, deletions and substitutions turn one into the other (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(truth, 1):
        before, row[0] = row[0], i
        for j, found in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (wanted != found))
    return row[-1]


def packed(sounds: Sequence[np.ndarray]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Sounds joined to pieces of up to LONGEST seconds, each with the numbers of those in it.

    A recogniser that always reads 30 s takes a piece as quickly as a sentence.
    """
    gap = np.zeros(int(GAP * SAMPLE_RATE), np.float32)
    numbers: list[int] = []
    for i in range(len(sounds)):
        if numbers and sum(len(sounds[n]) + len(gap) for n in (*numbers, i)) > LONGEST * SAMPLE_RATE:
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


def shuffled(text: str, rng: np.random.Generator) -> str:
    """A control: the characters of a text in another order."""
    return "".join(rng.permutation(characters(text)))


# --- whose voice, and how it sounds -------------------------------------------------------------------------------


def ranking(voices: np.ndarray, speakers: Sequence[str], known: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The share of voices [n, 256] whose speaker is the nearest of all known, and their mean cosine with it."""
    names = list(known)
    near = voices @ np.stack([known[name] / np.linalg.norm(known[name]) for name in names]).T
    wanted = np.array([names.index(speaker) for speaker in speakers])
    return float((near.argmax(1) == wanted).mean()), float(near[np.arange(len(wanted)), wanted].mean())


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Mel spectrogram [80, F] in dB of samples at 16 kHz."""
    return 20 * np.log10(np.maximum(_filters().T @ np.abs(_stft(samples)), FLOOR))


def mel_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The mean difference of two sounds' mel spectrograms in dB, over what both last."""
    count = min(len(ours), len(theirs))
    return float(np.abs(log_mel(ours[:count]) - log_mel(theirs[:count])).mean())


def griffin_lim(samples: np.ndarray) -> np.ndarray:
    """A control: a sound made anew from its mel spectrogram without a vocoder (Griffin and Lim, 1984)."""
    mel = 10 ** (log_mel(samples) / 20)
    magnitude = np.maximum(np.linalg.pinv(_filters().T) @ mel, 0)
    phase = np.exp(2j * np.pi * np.random.default_rng(0).random(magnitude.shape))
    for _ in range(ITERATIONS):
        sound = _istft(magnitude * phase, len(samples))
        phase = np.exp(1j * np.angle(_stft(sound)))
    return _istft(magnitude * phase, len(samples))


def _filters() -> np.ndarray:
    return mel_filter_bank(FFT // 2 + 1, MELS, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, "slaney", "slaney")


def _stft(samples: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    return torch.stft(x, FFT, HOP, window=torch.hann_window(FFT), return_complex=True).numpy()


def _istft(spectrum: np.ndarray, length: int) -> np.ndarray:
    x = torch.from_numpy(spectrum.astype(np.complex64))
    return torch.istft(x, FFT, HOP, window=torch.hann_window(FFT), length=length).numpy()


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
    wrong[DISTANCE] = _distance([*sounds[1:], sounds[0]], sounds)
    found = {}
    for name, voice in voices.items():
        said = [voice.say(trial) for trial in tqdm(judge.trials, desc=f"{name} speaks", mininterval=1)]
        found[name], _ = judge.measure(said, f"{name} is heard")
        again = [np.concatenate([voice.vocode(mel) for mel in made]) for made in mels]
        found[name][DISTANCE] = _distance(again, sounds)
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


def _distance(sounds: Sequence[np.ndarray], references: Sequence[np.ndarray]) -> float:
    return float(np.mean([mel_distance(*pair) for pair in zip(sounds, references, strict=True)]))
