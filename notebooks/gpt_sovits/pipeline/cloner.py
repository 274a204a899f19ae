"""Any text in the voice of a short recording: `VoiceCloner(folder)(text, "voice.wav", "what it says")`.

Needs openvino, numpy and scipy, the packages of the front end, and av for recordings that are no WAV files. To use it
elsewhere copy the folder of this file. The argument `folder` is what `convert.to_ir` writes.

P: phonemes, N: tokens, 25 per second, T: frames, two per token, D: features of BERT, S: samples.
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
from .audio_io import Sound, within_full_scale
from .constants import (
    HUBERT_RATE_HZ,
    NOISE_SCALE,
    SETTINGS_FILE,
    SILENCE_SAMPLES,
    SPEAKER_SIZE,
    VOCABULARY_FILE,
)
from .token_decoder import MAX_TOKENS, TOKENS_PER_S, SemanticDecoder, generate
from .token_decoder import SUBMODELS as DECODER_SUBMODELS

SUBMODELS = ("hubert", "semantic", "style", "synthesizer")  # that run once a piece, or once a recording
BERT = "bert"  # a sub-model that may be missing
PAUSE_S = 0.3  # between two pieces
MIN_SPEED, MAX_SPEED = 0.5, 2.0
# a piece of P phonemes may take SPARE_TOKENS + TOKENS_PER_PHONEME * P tokens: nobody speaks slower than 2.5 a second
SPARE_TOKENS, TOKENS_PER_PHONEME = 50, 10
# small differences of large numbers choose a token, and spectra span decades: too much for bf16, which a CPU may take
FP32_SUBMODELS = {part: {"INFERENCE_PRECISION_HINT": "f32"} for part in ("semantic", "style")}
# OpenVINO compiles kernels for every input length and caches thousands, 50 MB per length. This keeps the latest ones
KERNEL_CACHE = {"CPU": {"CPU_RUNTIME_CACHE_CAPACITY": "300"}}


@dataclass
class Timings:
    """What a call has generated so far, and how long each stage took."""

    pieces: int = 0  # that the text is cut into
    tokens: int = 0
    sound_s: float = 0.0  # seconds of the sound so far
    # seconds of the stages: recording, frontend, hubert, style, bert, tokens, synthesizer
    busy: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # warnings for the user

    @property
    def seconds(self) -> float:
        return sum(self.busy.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of decoding, the prefill included; None before there are any."""
        return self.tokens / self.busy["tokens"] if self.tokens else None

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing per second of sound; None before there is any."""
        return self.seconds / self.sound_s if self.sound_s else None

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        begin = perf_counter()
        yield
        self.busy[stage] = self.busy.get(stage, 0.0) + perf_counter() - begin


class Utterance(NamedTuple):
    """A piece of the text as speech."""

    text: str
    samples: np.ndarray  # [S] float32 in -1..1, and the pause after it if another piece follows
    sample_rate: int  # Hz
    tokens: np.ndarray  # [N] int64
    timings: Timings  # of the call so far


class Conditioning(NamedTuple):
    """What the models take from the recording and its words."""

    pieces: list  # frontend.Piece, of its words
    prompts: np.ndarray  # [N] int64, its tokens
    ge: np.ndarray  # [1, G, 1] float32, its style embedding; the released checkpoints call it "ge"


class VoiceCloner:
    """GPT-SoVITS (RVC-Boss, 2024) on OpenVINO: synthesizes text in the voice of a recording.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. properties: OpenVINO's, for all sub-models
    but FP32_SUBMODELS. By default the device chooses its precision; INFERENCE_PRECISION_HINT="f32" and
    KV_CACHE_PRECISION="f32" make it exact. `timings` is of the latest call. Threads may share an object: it synthesizes
    one piece at a time. Raises ValueError for another or a damaged folder, and for a device that is not there.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        from .frontend import Frontend, split  # late, for it brings dictionaries

        self.folder = Path(folder)
        settings = _read_settings(self.folder)
        self.version, self.sample_rate = settings["version"], settings["sample_rate"]
        self._latent_channels = settings["channels"]
        self._max_positions = settings["positions"]  # phonemes that the decoder has positions for
        self._bert_width = settings["bert"]
        self._max_characters = settings.get("characters")  # that BERT reads at once; without BERT, None
        self._vocabulary = _read_vocabulary(self.folder / VOCABULARY_FILE) if self._max_characters else None
        parts = SUBMODELS if self._vocabulary is None else (*SUBMODELS, BERT)
        core, cache = ov.Core(), KERNEL_CACHE.get(device, {})
        try:
            self._requests = {
                part: core.compile_model(
                    _xml(self.folder, part), device, cache | FP32_SUBMODELS.get(part, properties)
                ).create_infer_request()
                for part in parts
            }
            self._decoder = SemanticDecoder(self.folder, device, **cache, **properties)
        except RuntimeError as error:
            devices = ", ".join(core.available_devices)
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"The models in {self.folder} do not run on {device!r} ({reason}). Choose one of: {devices}; if it is, "
                "convert them again."
            ) from error
        self._frontend, self._split = Frontend(self.version), split
        self._lock, self.timings = Lock(), Timings()

    def __call__(
        self,
        text: str,
        recording: Sound,
        words: str,
        language: str = "en",
        recording_language: str | None = None,
        **options,
    ) -> tuple[np.ndarray, int]:
        """The whole text: samples [S] float32 in -1..1, and their rate in Hz. All arguments are those of `stream`."""
        pieces = list(self.stream(text, recording, words, language, recording_language, **options))
        return np.concatenate([piece.samples for piece in pieces]), self.sample_rate

    def stream(
        self,
        text: str,
        recording: Sound,
        words: str,
        language: str = "en",
        recording_language: str | None = None,
        *,
        seed: int = 0,
        speed: float = 1.0,
        top_k: int = 20,
        top_p: float = 0.6,
        temperature: float = 0.6,
        split: str = "sentences",
        speaker: np.ndarray | None = None,
    ) -> Iterator[Utterance]:
        """The text piece by piece, each as soon as it is synthesized; their samples are joined as they are.

        recording: 3 to 10 seconds of the voice, see `audio_io.read`. words: what is said in it. language: "en", "zh",
        "ja" or "auto", of the text and, if recording_language is None, of the words. seed: of tokens and noise.
        speed: 0.5 to 2. top_k, top_p, temperature: of sampling, see `token_decoder.probabilities`; top_k 1 is greedy,
        and the defaults are those of the authors' web page. split: how the text is cut, see `frontend.split`. speaker:
        [20480] float, the speaker embedding by ERes2NetV2, which v2Pro needs.

        Raises ValueError, before the first piece, for an unusable recording, for texts without words or with characters
        that the language lacks, and for numbers out of range. Warnings are in `timings.notes`.
        """
        _check(text, words, seed, speed, top_k, top_p, temperature)
        recording_language = language if recording_language is None else recording_language
        speaker_input, timings = self._speaker_input(speaker), Timings()
        with timings.during("recording"):
            sound = audio_io.read(recording)
        with self._lock, timings.during("frontend"):
            texts = self._split(text, split)
            recording_pieces = self._pieces(words, recording_language)
            pieces = [self._pieces(piece, language) for piece in texts]
        timings.notes += sound.notes + sound.check_words(phoneme_count(recording_pieces))
        if self._vocabulary is None and any(x.language == "zh" for group in [recording_pieces, *pieces] for x in group):
            # As the authors do, who have no features for other languages either: it is understood, if less lively.
            timings.notes.append(
                f"{self.folder} has no BERT: Mandarin is synthesized without its features, and sounds flatter."
            )
        for piece, text_pieces in zip(texts, pieces, strict=True):
            if (count := phoneme_count(recording_pieces) + phoneme_count(text_pieces)) > self._max_positions:
                raise ValueError(
                    f"The text {piece[:20]!r}... and the words of the recording have {count} phonemes, and the model "
                    f"reads up to {self._max_positions}. Cut the text into shorter sentences."
                )
        timings.pieces = len(texts)
        self.timings = timings
        with self._lock:
            conditioning = self._condition(sound, recording_pieces, speaker_input, timings)
        sampling = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        return self._stream(texts, pieces, conditioning, seed, speed, sampling, timings)

    def _stream(self, texts, pieces, conditioning, seed, speed, sampling, timings) -> Iterator[Utterance]:
        pause = np.zeros(int(PAUSE_S * self.sample_rate), np.float32)
        for i, (text, text_pieces) in enumerate(zip(texts, pieces, strict=True)):
            rng = np.random.default_rng((seed, i))  # the pieces before it do not matter
            with self._lock:
                tokens = self._tokens(text, conditioning, text_pieces, rng, sampling, timings)
                samples = self._sound(tokens, text_pieces, conditioning, rng, speed, timings)
            if i + 1 < len(texts):
                samples = np.concatenate([samples, pause])
            timings.sound_s += len(samples) / self.sample_rate
            yield Utterance(text, samples, self.sample_rate, tokens, timings)

    def _condition(self, recording: audio_io.Recording, pieces: list, speaker: dict, timings: Timings) -> Conditioning:
        """pieces: of the recording's words. speaker: of `_speaker_input`."""
        with timings.during("recording"):
            wav = recording.at(self.sample_rate)
            hubert_wav = np.pad(recording.at(HUBERT_RATE_HZ), (0, SILENCE_SAMPLES))
        with timings.during("hubert"):
            states = self._infer("hubert", wav=hubert_wav[None])  # [1, T, width]
            prompts = self._infer("semantic", last_hidden_state=states)[0]  # [N]
        with timings.during("style"):
            return Conditioning(pieces, prompts, self._infer("style", wav=wav[None], **speaker))

    def _tokens(
        self,
        text: str,
        conditioning: Conditioning,
        pieces: list,
        rng: np.random.Generator,
        sampling: dict,
        timings: Timings,
    ) -> np.ndarray:
        """The tokens [N] int64 of a piece, decoded after those of the recording."""
        context = [*conditioning.pieces, *pieces]
        with timings.during("bert"):
            bert = np.concatenate([self._features(piece) for piece in context], 1)  # [D, P]
        limit = token_limit(pieces)
        with timings.during("tokens"):
            inputs = joined_phonemes(context), bert, conditioning.prompts
            tokens = generate(self._decoder, *inputs, rng, **sampling, limit=limit)
        timings.tokens += len(tokens)
        if len(tokens) == limit:
            timings.notes.append(
                f"The voice found no end of {text[:20]!r} and was stopped after {limit / TOKENS_PER_S:.0f} s. Try "
                "another seed, or check that the words are those of the recording."
            )
        return tokens

    def _sound(
        self,
        tokens: np.ndarray,
        pieces: list,
        conditioning: Conditioning,
        rng: np.random.Generator,
        speed: float,
        timings: Timings,
    ) -> np.ndarray:
        """The samples [S] of a piece."""
        shape = 1, self._latent_channels, frame_count(tokens, speed)
        noise = NOISE_SCALE * rng.standard_normal(shape, np.float32)
        phones = joined_phonemes(pieces)[None]
        with timings.during("synthesizer"):
            wav = self._infer("synthesizer", codes=tokens[None], phones=phones, ge=conditioning.ge, noise=noise)
        return within_full_scale(wav[0, 0])

    def _pieces(self, text: str, language: str) -> list:
        """The front end's pieces of a text. Raises ValueError where Chinese is too long for BERT."""
        pieces, longest = self._frontend.pieces(text, language), self._max_characters
        if longest and any(len(piece.text) > longest for piece in pieces if piece.language == "zh"):
            raise ValueError(f"{text[:20]!r}... is longer than {longest} characters. Cut it into shorter sentences.")
        return pieces

    def _features(self, piece) -> np.ndarray:
        """BERT's features [D, P] of a piece's phonemes; zeros for other languages than Mandarin, or without BERT."""
        if piece.language != "zh" or self._vocabulary is None:
            return np.zeros((self._bert_width, len(piece.phones)), np.float32)
        states = self._infer(BERT, input_ids=bert_ids(piece.text, self._vocabulary)[None])[0]  # [characters + 2, D]
        return states[1:-1].repeat(piece.word2ph, 0).T

    def _infer(self, part: str, **inputs: np.ndarray) -> np.ndarray:
        request = self._requests[part]
        request.infer(inputs)
        return request.get_output_tensor(0).data.copy()

    def _speaker_input(self, speaker: np.ndarray | None) -> dict[str, np.ndarray]:
        """The style's input besides the recording: `speaker` [1, 20480] float32 for v2Pro, else none."""
        if self.version != "v2Pro":
            if speaker is not None:
                raise ValueError(f"{self.version} takes no speaker's embedding: leave `speaker` out.")
            return {}
        embedding = np.empty(0) if speaker is None else np.asarray(speaker)
        if embedding.size != SPEAKER_SIZE or embedding.dtype.kind != "f" or not np.isfinite(embedding).all():
            raise ValueError(
                f"v2Pro needs `speaker`, the {SPEAKER_SIZE} numbers that ERes2NetV2 makes of the recording."
            )
        return {"speaker": embedding.reshape(1, SPEAKER_SIZE).astype(np.float32)}


def phoneme_count(pieces: list) -> int:
    """How many phonemes pieces have."""
    return sum(len(piece.phones) for piece in pieces)


def joined_phonemes(pieces: list) -> np.ndarray:
    """The phonemes [P] int64 of pieces."""
    return np.concatenate([piece.phones for piece in pieces])


def bert_ids(text: str, vocabulary: dict[str, int]) -> np.ndarray:
    """BERT's input [len(text) + 2] int64 for a Chinese text, every character and mark of which is a token by itself."""
    tokens = ["[CLS]", *text.lower(), "[SEP]"]
    return np.int64([vocabulary.get(token, vocabulary["[UNK]"]) for token in tokens])


def token_limit(pieces: list) -> int:
    """How many tokens pieces may take before decoding is stopped."""
    return min(MAX_TOKENS, SPARE_TOKENS + TOKENS_PER_PHONEME * phoneme_count(pieces))


def frame_count(tokens: np.ndarray, speed: float) -> int:
    """How many frames T the synthesizer makes of tokens [N]."""
    return 2 * len(tokens) if speed == 1 else int(2 * len(tokens) / speed) + 1


def _xml(folder: Path, part: str) -> Path:
    return folder / f"openvino_{part}_model.xml"


def _read_settings(folder: Path) -> dict:
    """The settings of an IR folder. Raises ValueError where a file is missing or the settings cannot be used."""
    try:
        settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        lacking = {"version", "sample_rate", "channels", "positions", "bert"} - set(settings)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{folder / SETTINGS_FILE} cannot be read ({error}). Give the folder that the conversion wrote."
        ) from error
    if lacking:
        raise ValueError(f"{folder / SETTINGS_FILE} lacks {', '.join(sorted(lacking))}. Convert the model again.")
    bert = [BERT] if settings.get("characters") else []
    files = [_xml(folder, part) for part in (*SUBMODELS, *DECODER_SUBMODELS, *bert)]
    files += [file.with_suffix(".bin") for file in files] + [folder / VOCABULARY_FILE for _ in bert]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
    return settings


def _read_vocabulary(path: Path) -> dict[str, int]:
    """BERT's tokens and their ids."""
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        lacking = {"[UNK]", "[CLS]", "[SEP]"} - set(vocabulary)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}). Convert the model again.") from error
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(sorted(lacking))}. Give BERT's own file, and convert it again.")
    return vocabulary


def _check(text, words, seed, speed, top_k, top_p, temperature) -> None:
    """Raise ValueError for texts without words and numbers out of range, whatever the voice and language."""
    for value, name, remedy in (
        (text, "text", "Write what to say."),
        (words, "text of the recording", "Write down what is said in the recording."),
    ):
        if not isinstance(value, str) or not any(map(str.isalnum, value)):
            raise ValueError(f"The {name} has no words. {remedy}")
    for value, name, lowest in ((seed, "seed", 0), (top_k, "top_k", 1)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < lowest:
            raise ValueError(f"{name} is {value!r}: give a whole number from {lowest} on.")
    for value, name, lowest, highest in (
        (speed, "speed", MIN_SPEED, MAX_SPEED),
        (top_p, "top_p", 0.01, 1),
        (temperature, "temperature", 0.01, 10),
    ):
        if not isinstance(value, Real) or not lowest <= value <= highest:  # a comparison with NaN is False
            raise ValueError(f"{name} is {value!r}: give a number from {lowest} to {highest}.")
