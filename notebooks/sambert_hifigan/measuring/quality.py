"""Measures the quality of speech: held-out sentences in every voice, at every precision.

Three networks that were trained on recordings of people judge the speech (see `utils.speech.listening`): a speech
recogniser transcribes it, a speaker encoder identifies the voice, and a MOS predictor scores the quality. The negative
controls are the characters of each text in another order, spoken by another voice, and Griffin-Lim in place of the
vocoder.

`python -m notebooks.sambert_hifigan.measuring.quality` writes all of it to results/examination/sambert_hifigan.json,
which takes a minute. The notebook measures the few sentences of `spot_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from pypinyin import lazy_pinyin
from tqdm import tqdm

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.data import Trial, trials
from notebooks.sambert_hifigan.network.reference import Reference
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, SPEAKERS, Synthesizer
from notebooks.sambert_hifigan.pipeline.frontend import normalise
from utils import compare, paths, report, select, weights
from utils.speech import judging, listening
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
# The same for the six sentences of the notebook, in whose 66 characters each error counts twice as much.
SPOT_CHECK_MARGINS = MARGINS | {CHARACTERS: 0.2, SYLLABLES: 0.2}
MAX_ERROR_RATE = 0.15  # of characters, for PyTorch
GOALS = {CHARACTERS: 0.08}  # twice the error rate of the teacher's own speech
MIN_RIGHT_VOICES = 0.9  # share of the sentences
MAX_MEL_DISTANCE_DB = 3.0  # from PyTorch
TRIALS = 12  # of the examination
SAMPLE_TEXT = "今天天气很好，我们一起去公园散步吧。孩子们在草地上跑来跑去！"


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


# --- voices -------------------------------------------------------------------------------------------------------


def known_voices(reference: Reference, voiceprint: Voiceprint) -> dict[str, np.ndarray]:
    """The embeddings [256] of the voices of `tiny` and of the reference, by name.

    A released voice has no embedding of the public speaker encoder. It gets that of PyTorch's SAMPLE_TEXT.
    """
    tiny = paths.notebook_dir(__package__) / "tiny" / "am" / SPEAKERS
    known = {file.stem: np.load(file) for file in sorted(tiny.glob("*.npy"))}
    for name in reference.synthesizer.speakers:
        voice = reference.synthesizer.resolve_speaker(name)
        if isinstance(voice, str) or len(voice) != len(next(iter(known.values()))):
            sample = [reference.vocode(mel) for mel in reference.mels(SAMPLE_TEXT, name)]
            voice = voiceprint.embed(np.concatenate(sample))
        known[name] = voice
    return known


# --- the table ----------------------------------------------------------------------------------------------------


class Judge:
    """Measures the sounds of some trials.

    recognise: `listening.Recogniser`. voiceprint: the speaker encoder. opinion: `listening.MOS`, or None, which leaves
    that metric out. known: the embeddings of voices by name. Raises ValueError for trials of a single voice, since the
    controls need another one. controls: a trial for each, with its characters in another order and the next voice.
    transcripts: those of each call of `measure`, by its label.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        recognise: Recognise,
        voiceprint: Voiceprint,
        opinion: Callable[[np.ndarray], float] | None,
        known: Mapping[str, np.ndarray],
    ) -> None:
        voices = list(dict.fromkeys(trial.speaker for trial in trials))
        if len(voices) < 2:
            raise ValueError("One voice alone is always the right one. Let the trials have others, too.")
        self.trials, self.recognise, self.voiceprint = trials, recognise, voiceprint
        self.opinion, self.known = opinion, known
        self.transcripts: dict[str, list[tuple[list[int], str]]] = {}
        self.texts = [trial.text for trial in trials]
        following, rng = dict(zip(voices, voices[1:] + voices[:1], strict=True)), np.random.default_rng(0)
        self.controls = [Trial(shuffled(trial.text, rng), following[trial.speaker]) for trial in trials]

    def measure(self, sounds: Sequence[np.ndarray], label: str = "") -> dict[str, float]:
        """The metrics of the trials' sounds. label: whose sounds they are."""
        self.transcripts[label] = transcribed = transcripts(sounds, self.recognise, f"{label} is recognised")
        measured = self._judged(sounds, transcribed)
        return measured if self.opinion is None else measured | {OPINION: self.mean_opinion(sounds)}

    def measure_controls(self, sounds: Sequence[np.ndarray]) -> dict[str, float]:
        """The metrics of texts and voices, as if the sounds of `controls` were those of the trials."""
        return self._judged(sounds, transcripts(sounds, self.recognise, "a control is recognised"))

    def _judged(self, sounds: Sequence[np.ndarray], transcribed: Sequence[tuple[list[int], str]]) -> dict[str, float]:
        embeddings = np.stack([self.voiceprint.embed(sound) for sound in sounds])  # [n, 256]
        first, similarity = ranking(embeddings, [trial.speaker for trial in self.trials], self.known)
        return {
            CHARACTERS: error_rate(transcribed, self.texts, characters),
            SYLLABLES: error_rate(transcribed, self.texts, syllables),
            RIGHT_VOICE: first,
            SIMILARITY: similarity,
        }

    def mean_opinion(self, sounds: Sequence[np.ndarray]) -> float:
        return float(np.mean([self.opinion(sound) for sound in sounds]))


def table(judge: Judge, voices: Mapping[str, Voice], reference: Reference, teacher: float | None = None) -> list[dict]:
    """Quality rows of the voices by precision, of the PyTorch reference, and of all negative controls.

    A precision may be worse than the reference by the margin of the metric. The character error rate of the reference
    itself is at most MAX_ERROR_RATE, or five points above that of the teacher, if it is given.
    """
    rows = _rows(judge, voices, reference, MARGINS)
    rate, max_rate = rows[0]["reference"], MAX_ERROR_RATE
    if teacher is not None:
        max_rate = max(max_rate, teacher + 0.05)
        rows.append(compare.quality(CHARACTERS, "the teacher", teacher, None, None, "lower"))
    return [*rows, compare.quality(CHARACTERS, "PyTorch", rate, rate, max_rate, "lower", goal=GOALS[CHARACTERS])]


def spot_check(judge: Judge, voices: Mapping[str, Voice], reference: Reference) -> list[dict]:
    """Quality rows like those of `table` for a few sentences, with the margins that these need."""
    return _rows(judge, voices, reference, SPOT_CHECK_MARGINS)


def _rows(judge: Judge, voices: Mapping[str, Voice], reference: Reference, margins: Mapping[str, float]) -> list[dict]:
    # the reference and the negative controls
    mels, sounds = _read(reference, judge.trials, "PyTorch reads")
    baseline = judge.measure(sounds, "PyTorch") | {DISTANCE: 0.0}
    controls = judge.measure_controls(_read(reference, judge.controls, "PyTorch reads a control")[1])
    controls[DISTANCE] = mean_mel_distance([*sounds[1:], sounds[0]], sounds)
    if judge.opinion is not None:
        controls[OPINION] = judge.mean_opinion([griffin_lim(sound) for sound in sounds])

    # every precision
    values = {}
    for name, voice in voices.items():
        synthesized = [
            voice.synthesize(trial) for trial in tqdm(judge.trials, desc=f"{name} speaks", mininterval=1, disable=None)
        ]
        values[name] = judge.measure(synthesized, name)
        vocoded = [np.concatenate([voice.vocode(mel) for mel in trial_mels]) for trial_mels in mels]
        values[name][DISTANCE] = mean_mel_distance(vocoded, sounds)

    # the rows
    thresholds = {RIGHT_VOICE: MIN_RIGHT_VOICES, DISTANCE: MAX_MEL_DISTANCE_DB}
    for metric, margin in margins.items():
        if metric in baseline:
            thresholds[metric] = baseline[metric] + (-margin if BETTER[metric] == "higher" else margin)
    rows = []
    for metric, better in BETTER.items():
        if metric not in baseline:
            continue
        for name, metrics in values.items():
            limits = {"threshold": thresholds[metric], "better": better, "goal": GOALS.get(metric)}
            rows.append(compare.quality(metric, name, metrics[metric], baseline[metric], **limits))
        rows.append(compare.control(metric, CONTROLS[metric], controls[metric], thresholds[metric], better))
    return rows


def _read(reference: Reference, trials: Sequence[Trial], what: str) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """The mel spectrograms and the samples of each trial; a bar shows the progress."""
    mels = [list(reference.mels(*trial)) for trial in tqdm(trials, desc=what, mininterval=1, disable=None)]
    return mels, [np.concatenate([reference.vocode(mel) for mel in own]) for own in mels]


def main() -> None:
    """Examine the precisions that are offered and write the results."""
    model = select.model(list(convert.MODELS)).value
    synthesizers = {
        "FP32": Synthesizer(convert.prepare(model, "FP32"), **FP32_PROPERTIES),
        "FP16": Synthesizer(convert.prepare(model, "FP16")),
    }
    voices = {precision: ConvertedVoice(synthesizer) for precision, synthesizer in synthesizers.items()}
    reference = Reference(convert.source(model), synthesizers["FP32"])
    voiceprint = Voiceprint(listening.prepare_encoder())
    judge = Judge(
        trials(synthesizers["FP32"].speakers, TRIALS),
        listening.Recogniser(listening.prepare_recogniser()),
        voiceprint,
        listening.MOS(weights.fetch("dnsmos")),
        known_voices(reference, voiceprint),
    )
    report.save_examination("sambert_hifigan", model, table(judge, voices, reference))


if __name__ == "__main__":
    main()
