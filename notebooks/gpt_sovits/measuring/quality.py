"""Is it understood, is it the voice of the recording, how does it sound? Held-out sentences at every precision.

A recogniser writes down what it hears, an encoder tells the voice, a predictor of listeners' opinions the quality; all
were trained on people and know nothing of this model (see `utils.speech.listening`). Voices that training
never heard are counted apart. The controls must lose: phones in another order, another voice's recording, another
sentence's tokens, and Griffin-Lim in place of the synthesizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from tqdm import tqdm
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from notebooks.gpt_sovits.network.reference import Reference
from notebooks.gpt_sovits.pipeline import audio_io as recording
from notebooks.gpt_sovits.pipeline import mandarin
from notebooks.gpt_sovits.pipeline.audio_io import Sound
from utils import compare, paths
from utils.speech import judging
from utils.speech.judging import DISTANCE, FIRST, OPINION, SIMILARITY, Recognise, error_rate, ranking, transcripts
from utils.speech.speaker_encoder import LOUDNESS, SAMPLE_RATE, Voiceprint, resampled
from utils.speech.spectra import griffin_lim, mel_distance

SAMPLES = paths.notebook_dir(__package__) / "samples"  # voices to clone
WORDS, CHARACTERS = "word error rate, English", "character error rate, Mandarin"
SAME = "tokens as in PyTorch"
KNOWN, NEW = "known voices", "new voices"  # new: training has never heard them
BETTER = {
    **{WORDS: "lower", CHARACTERS: "lower", FIRST: "higher", SIMILARITY: "higher"},
    **{OPINION: "higher", SAME: "higher", DISTANCE: "lower"},
}
CONTROLS = {
    **dict.fromkeys((WORDS, CHARACTERS), "its phones in another order"),
    **dict.fromkeys((FIRST, SIMILARITY), "another voice's recording"),
    **dict.fromkeys((SAME, DISTANCE), "another sentence's tokens"),
    OPINION: "Griffin-Lim in place of the synthesizer",
}
# How much worse than PyTorch one may be. Another rounding draws other tokens, as another seed does: with 24 trials of
# tiny in each language, seeds alone move words by 0.03, characters by 0.05, the first voice by 0.05, opinions by 0.03
MARGINS = {WORDS: 0.2, CHARACTERS: 0.25, FIRST: 0.25, SIMILARITY: 0.05, OPINION: 0.15}
AIMS = {  # what must be reached, however bad PyTorch is, by MODEL
    "tiny": {WORDS: 0.7, CHARACTERS: 0.85, FIRST: 0.4},
    "released": {WORDS: 0.2, CHARACTERS: 0.2, FIRST: 0.8},
}
NEAR = 3.0  # dB of mel distance to PyTorch, at most
AGREED = {"FP32": 0.9, "FP16": 0.3, "INT8": 0.1}  # share of tokens before the first that differs; others: reported
GREEDY = {"top_k": 1}
FEW = 8  # trials whose tokens and spectra are compared with those of PyTorch
Metric = tuple[str, str]  # its name, and the voices that it is of; "" for all


class Voice(NamedTuple):
    """A recording to clone."""

    name: str
    recording: Sound
    words: str  # that are said in it
    language: str  # of the words
    new: bool = False  # whether training has never heard the voice
    speaker: np.ndarray | None = None  # [20480], v2Pro only


class Trial(NamedTuple):
    """A sentence and the voice that is to say it."""

    text: str
    language: str  # of UNITS
    voice: Voice


class Said(Protocol):
    """A piece that was said, of `pipeline.Spoken` and `reference.Said`."""

    samples: np.ndarray  # [S]
    sample_rate: int  # Hz
    tokens: np.ndarray  # [N] int64


class Cloner(Protocol):
    """What is judged: `pipeline.VoiceCloner`, or a `Reference`."""

    def stream(
        self, text: str, reference: Sound, reference_text: str, *languages: str, **options
    ) -> Sequence[Said]: ...


def voices(folder: Path = SAMPLES) -> list[Voice]:
    """The voices of a folder, by name: NAME.mp3 with its words in NAME.txt; names of new ones begin with new_.

    Raises ValueError for a recording without words, and a folder without recordings.
    """
    found = []
    for path in sorted(folder.glob("*.mp3")):
        if not (told := path.with_suffix(".txt")).is_file():
            raise ValueError(f"{path.name} has no {told.name} in {folder}. Write down there what is said.")
        words = told.read_text(encoding="utf-8").strip()
        language = "zh" if re.search("[一-龥]", words) else "en"
        found.append(Voice(path.stem, path, words, language, path.stem.startswith("new_")))
    if not found:
        raise ValueError(f"{folder} has no recordings (NAME.mp3). Name a folder with some.")
    return found


def trials(voices: Sequence[Voice], sentences: Mapping[str, Sequence[str]], count: int) -> list[Trial]:
    """So many of every language: its sentences said by all voices in turn, the next time each by the next voice."""
    return [
        Trial(texts[i % len(texts)], language, voices[(i + i // len(texts)) % len(voices)])
        for language, texts in sentences.items()
        for i in range(count)
    ]


def speak(cloner: Cloner, trial: Trial, seed: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """A trial's samples [S] float32 at 16 kHz, and its tokens [N]; options: of `stream`."""
    voice = trial.voice
    if voice.speaker is not None:
        options["speaker"] = voice.speaker
    given = trial.text, voice.recording, voice.words, trial.language, voice.language
    said = list(cloner.stream(*given, seed=seed, split="none", **options))
    sound = np.concatenate([piece.samples for piece in said])
    return resampled(sound, said[0].sample_rate), np.concatenate([piece.tokens for piece in said])


# --- what is measured ---------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """The words of an English text as Whisper's authors count them: small letters, numbers as digits, no marks."""
    return [word for word in NORMALISED(text).split() if any(map(str.isalnum, word))]


NORMALISED = EnglishTextNormalizer({})  # without its table of British and American spellings


def characters(text: str) -> list[str]:
    """The characters of a text as `judging.characters` counts them, with the normaliser of the front end."""
    return judging.characters(text, mandarin.normalise)


UNITS = {"en": (WORDS, words), "zh": (CHARACTERS, characters)}


def agreement(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """The share of tokens before the first that differs, of the longer one's."""
    pairs = zip(ours, theirs, strict=False)
    alike = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return alike / max(len(ours), len(theirs))


def jumbled(rng: np.random.Generator) -> Callable[[list], list]:
    """A control: puts the phones of every piece (`frontend.Piece`) in another order."""
    return lambda pieces: [piece._replace(phones=rng.permutation(piece.phones)) for piece in pieces]


class Judge:
    """Measures sounds [S] at 16 kHz, one of each trial.

    recognise: `listening.Recogniser` by language; opinion: `listening.MOS`. Raises ValueError for trials of one voice
    alone, which nothing could be told apart from, and for a language that nobody listens to.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        recognise: Mapping[str, Recognise],
        voiceprint: Voiceprint,
        opinion: Callable[[np.ndarray], float],
    ) -> None:
        names = list(dict.fromkeys(trial.voice.name for trial in trials))
        if len(names) < 2:
            raise ValueError("One voice alone is always the right one. Let the trials have others, too.")
        if deaf := {trial.language for trial in trials} - (UNITS.keys() & recognise.keys()):
            raise ValueError(f"Nobody listens to {', '.join(sorted(deaf))}. Leave out these sentences.")
        self.trials, self.recognise, self.voiceprint, self.opinion = trials, recognise, voiceprint, opinion
        self.right = [trial.voice.name for trial in trials]
        self.wrong = [names[(names.index(name) + 1) % len(names)] for name in self.right]
        recordings = {trial.voice.name: trial.voice.recording for trial in trials}
        self.known = {name: self._print(recording.read(x).at(SAMPLE_RATE)) for name, x in recordings.items()}
        groups = {KNOWN: False, NEW: True}
        self.groups = {x: [i for i, y in enumerate(trials) if y.voice.new == new] for x, new in groups.items()}

    def errors(self, sounds: Sequence[np.ndarray], what: str = "") -> dict[Metric, float]:
        """The share of words and characters that are heard otherwise; a bar shows the progress."""
        found = {}
        for language, (metric, units) in UNITS.items():
            if mine := [i for i, trial in enumerate(self.trials) if trial.language == language]:
                heard = transcripts([sounds[i] for i in mine], self.recognise[language], f"{what}, {language}")
                found[metric, ""] = error_rate(heard, [self.trials[i].text for i in mine], units)
        return found

    def likeness(self, sounds: Sequence[np.ndarray], names: Sequence[str]) -> dict[Metric, float]:
        """How often the voice of that name is the nearest, and the mean cosine with its recording."""
        prints, found = np.stack([self._print(sound) for sound in sounds]), {}
        for group, numbers in self.groups.items():
            if numbers:
                values = ranking(prints[numbers], [names[i] for i in numbers], self.known)
                found |= dict(zip([(FIRST, group), (SIMILARITY, group)], values, strict=True))
        return found

    def cosines(self, sound: np.ndarray) -> dict[str, float]:
        """The cosine of a sound's voice with that of every recording, by name."""
        mine = self._print(sound)
        return {name: float(mine @ known) for name, known in self.known.items()}

    def opinions(self, sounds: Sequence[np.ndarray]) -> dict[Metric, float]:
        """The mean opinion of listeners, from 1 to 5."""
        return {(OPINION, ""): float(np.mean([self.opinion(sound) for sound in sounds]))}

    def measure(self, sounds: Sequence[np.ndarray], what: str = "") -> dict[Metric, float]:
        """All that sounds tell by themselves."""
        return self.errors(sounds, what) | self.likeness(sounds, self.right) | self.opinions(sounds)

    def _print(self, sound: np.ndarray) -> np.ndarray:
        """[256]; every sound is made as loud, for the encoder hears loudness, too."""
        level = max(1e-6, float(np.sqrt(np.square(sound).mean())))
        return self.voiceprint.embed((sound * (10 ** (LOUDNESS / 20) / level)).astype(np.float32))


# --- the table ----------------------------------------------------------------------------------------------------


def table(
    judge: Judge, makers: Mapping[str, Callable[[], Cloner]], reference: Reference, aims: Mapping[str, float]
) -> list[dict]:
    """Quality rows of cloners, with the unquantised PyTorch reference, and of all controls.

    makers: what makes each cloner, by precision; one of them is in memory at a time.

    A precision may be its margin worse than the reference, but no worse than the aims; what it makes of new voices is
    only reported. It draws its own tokens; for the mel distance PyTorch says FEW of them with the same noise, and for
    the agreement all take the likeliest.
    """
    numbered = list(enumerate(judge.trials))
    few = range(0, len(numbered), -(-len(numbered) // FEW))

    def progress(name: str):
        return tqdm(numbered, desc=f"{name} speaks", mininterval=1)

    sounds, drawn = zip(*(speak(reference, trial, i) for i, trial in progress("PyTorch")), strict=True)
    likeliest = [speak(reference, judge.trials[i], i, **GREEDY)[1] for i in few]
    wanted = judge.measure(sounds, "PyTorch is heard") | {(SAME, ""): 1.0, (DISTANCE, ""): 0.0}
    rng = np.random.default_rng(0)
    mixed = [speak(reference, trial, i, change=jumbled(rng))[0] for i, trial in progress("a control")]
    others = [speak(reference, judge.trials[i], i, tokens=[drawn[i - 1]])[0] for i in few]
    wrong = judge.errors(mixed, "a control is heard") | judge.likeness(sounds, judge.wrong)
    wrong |= judge.opinions([griffin_lim(sound) for sound in sounds])
    wrong[SAME, ""] = _mean(agreement, likeliest[1:] + likeliest[:1], likeliest)
    wrong[DISTANCE, ""] = _mean(mel_distance, others, [sounds[i] for i in few])
    found = {}
    for name, make in makers.items():
        cloner = make()
        said, tokens = zip(*(speak(cloner, trial, i) for i, trial in progress(name)), strict=True)
        again = [speak(reference, judge.trials[i], i, tokens=[tokens[i]])[0] for i in few]
        greedy = [speak(cloner, judge.trials[i], i, **GREEDY)[1] for i in few]
        found[name] = judge.measure(said, f"{name} is heard")
        found[name][SAME, ""] = _mean(agreement, greedy, likeliest)
        found[name][DISTANCE, ""] = _mean(mel_distance, [said[i] for i in few], again)
        del cloner
    return _rows(found, wanted, wrong, aims)


def goal(metric: str, precision: str, wanted: float, aims: Mapping[str, float]) -> float | None:
    """What a precision must reach where PyTorch reaches `wanted`, None for what is only reported; aims: of AIMS."""
    if metric == DISTANCE:
        return NEAR
    if metric == SAME:
        return AGREED.get(precision)
    if BETTER[metric] == "higher":
        return max(wanted - MARGINS[metric], aims.get(metric, -np.inf))
    return min(wanted + MARGINS[metric], aims.get(metric, np.inf))


def _rows(
    found: Mapping[str, dict], wanted: Mapping[Metric, float], wrong: Mapping[Metric, float], aims: Mapping[str, float]
) -> list[dict]:
    rows = []
    for key in sorted(wanted, key=lambda key: list(BETTER).index(key[0])):
        metric, better = key[0], BETTER[key[0]]
        name, judged = ", ".join(filter(None, key)), key[1] != NEW
        goals = {precision: goal(metric, precision, wanted[key], aims) if judged else None for precision in found}
        for precision, x in found.items():
            rows.append(compare.quality(name, precision, x[key], wanted[key], goals[precision], better))
        if judged:
            easiest = (min if better == "higher" else max)(x for x in goals.values() if x is not None)
            rows.append(compare.control(name, CONTROLS[metric], wrong[key], easiest, better))
    return rows


def _mean(measure: Callable, ours: Sequence, theirs: Sequence) -> float:
    return float(np.mean([measure(*pair) for pair in zip(ours, theirs, strict=True)]))
