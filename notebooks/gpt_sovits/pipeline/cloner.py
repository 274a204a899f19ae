"""Any text in the voice of a short recording: `VoiceCloner(folder)(text, "voice.wav", "what it says")`.

Needs openvino, numpy and scipy, and av for recordings that are no WAV files. To use it elsewhere copy this file,
semantic.py, recording.py and the files of the front end into one package. The folder is what `convert.to_ir` writes.

P: phones, N: tokens, 25 in a second, T: frames, two of a token, D: features of BERT, S: samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import NamedTuple

import numpy as np
import openvino as ov

from . import audio_io
from .audio_io import Sound
from .token_decoder import LIMIT, SemanticDecoder, generate
from .token_decoder import PARTS as DECODER

SETTINGS, VOCABULARY = "config.json", "tokenizer.json"
PARTS = ("hubert", "semantic", "style", "synthesizer")
BERT = "bert"  # may be missing
HEARD = 16_000  # Hz, of HuBERT's input
SILENCE = 9600  # samples after it: the authors meant 0.3 s, but of 32 kHz
PAUSE = 0.3  # seconds between two pieces
NOISE = 0.5  # what normal noise is multiplied by
SPEAKER = 20_480  # numbers of a speaker's embedding by ERes2NetV2, v2Pro
SLOWEST, FASTEST = 0.5, 2.0  # speed
ROOM, SLOW = 50, 10  # tokens that P phones may take: ROOM + SLOW * P, 2.5 phones in a second. Nobody speaks slower
# small differences of large numbers choose a token, and spectra span decades: too much for bf16, which a CPU may take
EXACT = {part: {"INFERENCE_PRECISION_HINT": "f32"} for part in ("semantic", "style")}
# OpenVINO makes kernels for every length and keeps thousands, which takes 50 MB a length. These are those of the latest
KERNELS = {"CPU": {"CPU_RUNTIME_CACHE_CAPACITY": "300"}}


@dataclass
class Figures:
    """What a call made, and how long it took. It grows while pieces are made."""

    pieces: int = 0  # that the text is cut into
    tokens: int = 0
    sound_s: float = 0.0  # seconds of the sound so far
    # seconds of the stages: recording, frontend, hubert, style, bert, tokens, synthesizer
    busy: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what listeners should know

    @property
    def seconds(self) -> float:
        return sum(self.busy.values())

    @property
    def tokens_per_second(self) -> float | None:
        """None before there are any. Reading phones and the reference counts as time."""
        return self.tokens / self.busy["tokens"] if self.tokens else None

    @property
    def real_time_factor(self) -> float | None:
        """Seconds that a second of sound took; None before there is any."""
        return self.seconds / self.sound_s if self.sound_s else None

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count what the block takes as time of a stage."""
        begin = perf_counter()
        yield
        self.busy[stage] = self.busy.get(stage, 0.0) + perf_counter() - begin


class Spoken(NamedTuple):
    """A piece of the text that was said."""

    text: str
    samples: np.ndarray  # [S] float32 in -1..1, and the pause after it if another piece follows
    sample_rate: int  # Hz
    tokens: np.ndarray  # [N] int64
    figures: Figures  # of the call so far


class _Voice(NamedTuple):
    """What a reference gives."""

    pieces: list  # frontend.Piece, of what it says
    prompts: np.ndarray  # [N] int64, its tokens
    ge: np.ndarray  # [1, G, 1], its style


class VoiceCloner:
    """GPT-SoVITS (RVC-Boss, 2024) on OpenVINO: says text in the voice of a recording.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. properties: OpenVINO's, of all that may be
    rounded; by default the device chooses its arithmetic (INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32" are
    exact). `figures` tells what the latest call took. Threads may share it: pieces are made one at a time. Raises
    ValueError for a folder that is not one of these, or damaged, and a device that is not there.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        from .frontend import Frontend, split  # late, for it brings dictionaries

        self.folder = Path(folder)
        settings = _read(self.folder)
        self.version, self.sample_rate = settings["version"], settings["sample_rate"]
        self._channels, self._positions, self._width = (settings[name] for name in ("channels", "positions", "bert"))
        self._characters = settings.get("characters")  # that BERT reads at once; without it, None
        self._vocabulary = _vocabulary(self.folder / VOCABULARY) if self._characters else None
        parts = PARTS if self._vocabulary is None else (*PARTS, BERT)
        core, kernels = ov.Core(), KERNELS.get(device, {})
        try:
            self._run = {
                part: core.compile_model(
                    _path(self.folder, part), device, kernels | EXACT.get(part, properties)
                ).create_infer_request()
                for part in parts
            }
            self._decoder = SemanticDecoder(self.folder, device, **kernels, **properties)
        except RuntimeError as error:
            there = ", ".join(core.available_devices)
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"The models in {self.folder} do not run on {device!r} ({reason}). Choose one of: {there}; if it is, "
                "convert them again."
            ) from error
        self._frontend, self._split = Frontend(self.version), split
        self._lock, self.figures = Lock(), Figures()

    def __call__(
        self,
        text: str,
        reference: Sound,
        reference_text: str,
        language: str = "en",
        reference_language: str | None = None,
        **options,
    ) -> tuple[np.ndarray, int]:
        """The whole text: samples [S] float32 in -1..1, and their rate in Hz. All arguments are those of `stream`."""
        spoken = list(self.stream(text, reference, reference_text, language, reference_language, **options))
        return np.concatenate([piece.samples for piece in spoken]), self.sample_rate

    def stream(
        self,
        text: str,
        reference: Sound,
        reference_text: str,
        language: str = "en",
        reference_language: str | None = None,
        *,
        seed: int = 0,
        speed: float = 1.0,
        top_k: int = 20,
        top_p: float = 0.6,
        temperature: float = 0.6,
        split: str = "sentences",
        speaker: np.ndarray | None = None,
    ) -> Iterator[Spoken]:
        """The text piece by piece, each as soon as it is made; sounds are to be joined as they are.

        reference: 3 to 10 seconds of the voice, see `recording.read`; reference_text: what is said there. language:
        "en", "zh", "ja" or "auto", of the text and, if reference_language is None, of the reference. seed: of tokens
        and noise; top_k, top_p, temperature: how tokens are drawn, see `semantic.probabilities` (top_k 1 takes the
        likeliest); the defaults are those of the function behind the authors' web page. speed: 0.5 to 2. split: how
        the text is cut, see `frontend.split`. speaker: [20480], the speaker's embedding by ERes2NetV2, which v2Pro
        needs.

        Raises ValueError, at once, for a recording that will not do, texts with nothing to say or what cannot be said,
        and numbers that make no sense. What is only doubtful, `figures.notes` tells.
        """
        _check(text, reference_text, seed, speed, top_k, top_p, temperature)
        reference_language = language if reference_language is None else reference_language
        given, figures = self._speaker(speaker), Figures()
        with figures.during("recording"):
            heard = audio_io.read(reference)
        with self._lock, figures.during("frontend"):
            texts = self._split(text, split)
            said = self._pieces(reference_text, reference_language)
            pieces = [self._pieces(piece, language) for piece in texts]
        figures.notes += heard.notes + heard.check_words(_count(said))
        if self._vocabulary is None and any(x.language == "zh" for x in [*said, *(x for y in pieces for x in y)]):
            # As the authors do, who have no features for other languages either: it is understood, if less lively.
            figures.notes.append(f"{self.folder} has no BERT: Chinese is said without its sense of sentences.")
        for piece, spelled in zip(texts, pieces, strict=True):
            if (count := _count(said) + _count(spelled)) > self._positions:
                raise ValueError(
                    f"The text {piece[:20]!r}... has {count} phones with the reference's, and the model places for "
                    f"{self._positions}. Cut it into shorter sentences."
                )
        figures.pieces = len(texts)
        self.figures = figures
        with self._lock:
            voice = self._hear(heard, said, given, figures)
        sampling = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        return self._stream(texts, pieces, voice, seed, speed, sampling, figures)

    def _stream(self, texts, pieces, voice, seed, speed, sampling, figures) -> Iterator[Spoken]:
        pause = np.zeros(int(PAUSE * self.sample_rate), np.float32)
        for i, (text, spelled) in enumerate(zip(texts, pieces, strict=True)):
            rng = np.random.default_rng((seed, i))  # what was said before does not matter
            with self._lock:
                tokens = self._tokens(text, voice, spelled, rng, sampling, figures)
                samples = self._sound(tokens, spelled, voice, rng, speed, figures)
            if i + 1 < len(texts):
                samples = np.concatenate([samples, pause])
            figures.sound_s += len(samples) / self.sample_rate
            yield Spoken(text, samples, self.sample_rate, tokens, figures)

    def _hear(self, heard: audio_io.Recording, said: list, given: dict, figures: Figures) -> _Voice:
        """given: the speaker, if the version knows one."""
        with figures.during("recording"):
            wav, spoken = heard.at(self.sample_rate), np.pad(heard.at(HEARD), (0, SILENCE))
        with figures.during("hubert"):
            states = self._infer("hubert", wav=spoken[None])
            prompts = self._infer("semantic", last_hidden_state=states)[0]
        with figures.during("style"):
            return _Voice(said, prompts, self._infer("style", wav=wav[None], **given))

    def _tokens(
        self, text: str, voice: _Voice, spelled: list, rng: np.random.Generator, sampling: dict, figures: Figures
    ) -> np.ndarray:
        """The tokens [N] of a piece, said after the reference."""
        known = [*voice.pieces, *spelled]
        with figures.during("bert"):
            bert = np.concatenate([self._features(piece) for piece in known], 1)
        limit = min(LIMIT, ROOM + SLOW * _count(spelled))
        with figures.during("tokens"):
            tokens = generate(self._decoder, _joined(known), bert, voice.prompts, rng, **sampling, limit=limit)
        figures.tokens += len(tokens)
        if len(tokens) == limit:
            figures.notes.append(
                f"The voice found no end of {text[:20]!r} and was stopped after {limit / 25:.0f} s. Try another seed, "
                "or check that the reference's text is what is said there."
            )
        return tokens

    def _sound(
        self, tokens: np.ndarray, spelled: list, voice: _Voice, rng: np.random.Generator, speed: float, figures: Figures
    ) -> np.ndarray:
        """The samples [S] of a piece."""
        frames = 2 * len(tokens) if speed == 1 else int(2 * len(tokens) / speed) + 1
        noise = NOISE * rng.standard_normal((1, self._channels, frames), np.float32)
        phones = _joined(spelled)[None]
        with figures.during("synthesizer"):
            wav = self._infer("synthesizer", codes=tokens[None], phones=phones, ge=voice.ge, noise=noise)
        return wav[0, 0] / max(1, np.abs(wav).max())

    def _pieces(self, text: str, language: str) -> list:
        """What the front end makes of a text. Raises ValueError where Chinese is too long for BERT."""
        pieces, most = self._frontend.pieces(text, language), self._characters
        if most and any(len(piece.text) > most for piece in pieces if piece.language == "zh"):
            raise ValueError(f"{text[:20]!r}... is longer than {most} characters. Cut it into shorter sentences.")
        return pieces

    def _features(self, piece) -> np.ndarray:
        """BERT's features [D, P] of the phones; zeros where it knows nothing of the language, or is missing."""
        if piece.language != "zh" or self._vocabulary is None:
            return np.zeros((self._width, len(piece.phones)), np.float32)
        # Chinese characters and marks are tokens by themselves, so that no tokenizer is needed
        tokens = ["[CLS]", *piece.text.lower(), "[SEP]"]
        ids = [self._vocabulary.get(token, self._vocabulary["[UNK]"]) for token in tokens]
        return self._infer(BERT, input_ids=np.int64([ids]))[0, 1:-1].repeat(piece.word2ph, 0).T

    def _infer(self, part: str, **inputs: np.ndarray) -> np.ndarray:
        request = self._run[part]
        request.infer(inputs)
        return request.get_output_tensor(0).data.copy()

    def _speaker(self, speaker: np.ndarray | None) -> dict[str, np.ndarray]:
        """What the style takes beside the recording: `speaker` [1, 20480] of v2Pro."""
        if self.version != "v2Pro":
            if speaker is not None:
                raise ValueError(f"{self.version} takes no speaker's embedding: leave `speaker` out.")
            return {}
        found = np.empty(0) if speaker is None else np.asarray(speaker)
        if found.size != SPEAKER or found.dtype.kind != "f" or not np.isfinite(found).all():
            raise ValueError(f"v2Pro needs `speaker`, the {SPEAKER} numbers that ERes2NetV2 makes of the recording.")
        return {"speaker": found.reshape(1, SPEAKER).astype(np.float32)}


def _path(folder: Path, part: str) -> Path:
    return folder / f"openvino_{part}_model.xml"


def _read(folder: Path) -> dict:
    """The settings of a folder that is whole."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        lacking = {"version", "sample_rate", "channels", "positions", "bert"} - set(settings)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{folder / SETTINGS} cannot be read ({error}). Give the folder that the conversion wrote."
        ) from error
    if lacking:
        raise ValueError(f"{folder / SETTINGS} lacks {', '.join(sorted(lacking))}. Convert the model again.")
    bert = [BERT] if settings.get("characters") else []
    files = [_path(folder, part) for part in (*PARTS, *DECODER, *bert)]
    files += [file.with_suffix(".bin") for file in files] + [folder / VOCABULARY for _ in bert]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
    return settings


def _vocabulary(path: Path) -> dict[str, int]:
    """BERT's tokens and their ids."""
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        lacking = {"[UNK]", "[CLS]", "[SEP]"} - set(vocabulary)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}). Convert the model again.") from error
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(sorted(lacking))}. Give BERT's own file, and convert it again.")
    return vocabulary


def _count(pieces: list) -> int:
    """Phones of pieces."""
    return sum(len(piece.phones) for piece in pieces)


def _joined(pieces: list) -> np.ndarray:
    """The phones [P] int64 of pieces."""
    return np.concatenate([piece.phones for piece in pieces])


def _check(text, reference_text, seed, speed, top_k, top_p, temperature) -> None:
    """Raise ValueError for what no voice and no language makes sensible."""
    for given, name, way_out in (
        (text, "text", "Write what to say."),
        (reference_text, "reference's text", "Write down what is said in the recording."),
    ):
        if not isinstance(given, str) or not any(map(str.isalnum, given)):
            raise ValueError(f"The {name} has no words. {way_out}")
    for value, name, least in ((seed, "seed", 0), (top_k, "top_k", 1)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}: give a whole number from {least} on.")
    limits = ((speed, "speed", SLOWEST, FASTEST), (top_p, "top_p", 0.01, 1), (temperature, "temperature", 0.01, 10))
    for value, name, least, most in limits:
        if not isinstance(value, Real) or not least <= value <= most:  # NaN is nowhere between
            raise ValueError(f"{name} is {value!r}: give a number from {least} to {most}.")
