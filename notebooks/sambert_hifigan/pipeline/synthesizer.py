"""Mandarin text to speech with a chosen voice: `Synthesizer(folder)(text, speaker) -> (samples, sample_rate)`.

The package needs openvino, numpy, pypinyin, jieba and cn2an; to use it elsewhere, copy this folder. `convert.to_ir`
writes the folder of a voice:

    voice.json     sample_rate (Hz)
                   hop (samples of a frame)
                   group (frames that a step of the decoder generates)
                   positions (maximum number of symbols in a sentence)
                   embedding (size of a speaker embedding; 0 means that the encoder has a table of speakers)
                   sines (number of sines in the source of the vocoder; 0 means that there is no source)
                   tables (tables of symbols, see frontend.standard_tables)
    encoder.xml    symbols to embeddings
    variance.xml   embeddings with predicted pitch and energy
    duration.xml   duration of every symbol
    memory.xml     embeddings repeated for every frame: the decoder attends to them
    decoder.xml    decoder, autoregressive over groups of frames
    finish.xml     postnet: decoded frames to the mel spectrogram
    source.xml     where sines > 0: pitch to a sum of sines
    vocoder.xml    mel spectrogram, and where sines > 0 the source, to samples
    speakers/      where embedding > 0: NAME.npy, the embedding of every voice

T: symbols, F: frames, N: groups of r frames, M: mel channels, S: samples (F times hop), E: size of a speaker embedding,
C: channels of an embedding, L: blocks of the decoder, D: channels of a block, H: sines.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov

from .frontend import Frontend, Symbol

CONFIG, SPEAKERS = "voice.json", "speakers"
SUBMODELS = ("encoder", "variance", "duration", "memory", "decoder", "finish", "source", "vocoder")
CONFIG_KEYS = ("sample_rate", "hop", "group", "positions", "embedding", "sines", "tables")
MIN_SPEED, MAX_SPEED = 0.5, 2.0  # relative to the voice's own
MAX_SYMBOL_FRAMES = 1000  # only a damaged checkpoint predicts longer durations
# By default, a CPU may compute in BF16. Durations would then round to other frames, and sines would lose their phase.
FP32_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}
# OpenVINO compiles kernels for every length and caches thousands: 34 MB per sentence length in the vocoder of `tiny`.
# With the latest 300, a length leaves 2 MB.
KERNEL_CACHE = {"CPU": {"CPU_RUNTIME_CACHE_CAPACITY": "300"}}


class Spoken(NamedTuple):
    """The speech of one sentence."""

    text: str
    samples: np.ndarray  # [S] float32 in -1..1
    sample_rate: int  # Hz
    mel: np.ndarray  # [M, F], the input of the vocoder
    durations: list[tuple[str, int]]  # characters with their numbers of frames; #1, #3 and #4 are breaks

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


class Synthesizer:
    """Synthesizes Mandarin text with the voices of a folder.

    folder: a converted voice, see above. properties: OpenVINO properties of the vocoder; all other models compute in
    FP32. Threads may share an instance: it synthesizes one sentence at a time. Raises ValueError for an incomplete
    folder and for an unknown device.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        self.folder = Path(folder)
        self.config = _read_config(self.folder / CONFIG)
        self.frontend = Frontend(self.config["tables"])
        self._speaker_files = {file.stem: file for file in sorted((self.folder / SPEAKERS).glob("*.npy"))}
        self._lock = threading.Lock()
        self._requests: dict[str, ov.InferRequest] = {}
        core = ov.Core()
        for part in parts_of(self.config):
            model = _read_model(core, self.folder / f"{part}.xml")
            part_properties = KERNEL_CACHE.get(device, {}) | properties if part == "vocoder" else FP32_PROPERTIES
            try:
                self._requests[part] = core.compile_model(model, device, part_properties).create_infer_request()
            except RuntimeError as error:
                devices = ", ".join(core.available_devices)
                reason = str(error).strip().splitlines()[-1]
                raise ValueError(f"{part} does not run on {device!r}. There are: {devices}. ({reason})") from error

    @property
    def speakers(self) -> list[str]:
        """The names of the voices."""
        return list(self._speaker_files) if self.config["embedding"] else self.frontend.speakers

    def __call__(
        self, text: str, speaker: str | Path | np.ndarray, speed: float = 1.0, seed: int = 0
    ) -> tuple[np.ndarray, int]:
        """Samples [S] float32 in -1..1 of the whole text, and their sample rate in Hz. See `stream`."""
        sentences = [spoken.samples for spoken in self.stream(text, speaker, speed, seed)]
        return np.concatenate(sentences), self.config["sample_rate"]

    def stream(
        self, text: str, speaker: str | Path | np.ndarray, speed: float = 1.0, seed: int = 0
    ) -> Iterator[Spoken]:
        """Yield the speech of each sentence as soon as it is synthesized. Concatenate the samples to join sentences.

        speaker: one of `speakers`. If voices are embeddings, it may also be an embedding [E], or the .npy file of one.
        speed: of the speech, 0.5 to 2. seed: of the phases and the noise in the source of the vocoder.

        The call itself raises ValueError for a text without words, an unknown speaker, an embedding of another size or
        with NaN, and a speed or seed out of range. It raises Unspeakable for characters without a reading. The iterator
        raises ValueError for a sentence with more symbols than the model has positions.
        """
        if not isinstance(text, str):
            raise ValueError(f"The text is {type(text).__name__}, not str. Give the words to say.")
        if not isinstance(speed, int | float | np.number) or not MIN_SPEED <= speed <= MAX_SPEED:
            raise ValueError(
                f"The speed is {speed!r}. Choose one from {MIN_SPEED} to {MAX_SPEED}; 1 is the voice's own."
            )
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise ValueError(f"The seed is {seed!r}. Choose a whole number from 0.")
        voice = self.resolve_speaker(speaker)
        sentences = self.frontend.sentences(text)
        return self._stream(sentences, voice, speed, np.random.default_rng(seed))

    def resolve_speaker(self, speaker: str | Path | np.ndarray) -> str | np.ndarray:
        """A name in the encoder's table of speakers, or an embedding [E]. speaker: as for `stream`, with its errors."""
        size, names = self.config["embedding"], ", ".join(self.speakers)
        if isinstance(speaker, str) and speaker in self.speakers:
            return read_embedding(self._speaker_files[speaker], size) if size else speaker
        if not size:
            raise ValueError(f"There is no speaker {str(speaker)[:80]!r}. Choose one of: {names}.")
        if isinstance(speaker, str | Path):
            if Path(speaker).suffix != ".npy":
                raise ValueError(
                    f"There is no speaker {str(speaker)[:80]!r}. Choose one of: {names}; or give the .npy file of one."
                )
            return read_embedding(Path(speaker), size)
        return checked_embedding(speaker, size, "The speaker's embedding")

    def encoder_inputs(self, symbols: list[Symbol], voice: str | np.ndarray) -> dict[str, np.ndarray]:
        """Inputs of the encoder for T symbols: `ling` [1, T, 4], `emotion` [1, T], and `speaker` [1, T] for a name."""
        ids = {stream: np.array([row]) for stream, row in self.frontend.ids(symbols).items()}  # [1, T] each
        ling = np.stack([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")], -1)  # [1, T, 4]
        inputs = {"ling": ling, "emotion": ids["emotion"]}
        if isinstance(voice, str):
            inputs["speaker"] = ids["speaker"]
        return inputs

    def symbols(self, sentence: str, voice: str | np.ndarray) -> list[Symbol]:
        """The symbols of a sentence. voice: of `resolve_speaker`; an embedding needs no name in the symbols."""
        named = voice if isinstance(voice, str) else self.frontend.speakers[0]
        return self.frontend.symbols(sentence, named)

    def vocode(self, mel: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Samples [S] of a mel spectrogram [M, F], see `Spoken.mel`. rng: draws the phases and the noise."""
        return self.run("vocoder", **self.vocoder_inputs(mel, rng))["sound"][0, 0]

    def vocoder_inputs(self, mel: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Inputs of the vocoder for a mel spectrogram [M, F]: `mel` [1, M, F], and with a source `source` [1, 1, S].

        With a source, the last two channels of the spectrogram are the pitch in Hz and the voicing (0 or 1). The source
        turns them into sines, and the vocoder gets the other channels.
        """
        if not self.config["sines"]:
            return {"mel": mel[None]}
        mel, f0, voiced = np.split(mel[None], [-2, -1], 1)  # [1, M - 2, F], [1, 1, F], [1, 1, F]
        random = source_inputs(self.config, mel.shape[2], rng)
        return {"mel": mel, "source": self.run("source", f0=f0, voiced=voiced, **random)["source"]}

    def run(self, part: str, **inputs: np.ndarray) -> Mapping[str, np.ndarray]:
        """Outputs of one model by name. part: one of `parts_of(config)`."""
        return self._requests[part].infer(inputs, share_inputs=True)

    def input_names(self, part: str) -> list[str]:
        """The names of a model's inputs, in order."""
        return [port.any_name for port in self._requests[part].get_compiled_model().inputs]

    def durations(self, condition: np.ndarray) -> np.ndarray:
        """Durations [T] of all symbols in frames, not rounded, for condition [1, T, C]."""
        log_durations = self.run("duration", condition=condition)["log_durations"][0]  # [T]
        return np.exp(log_durations) - 1

    def decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """Frames [1, N * r, M] for memory [1, N, C] and its keys and values `ahead` [L, 1, N, 2D]."""
        groups = self.run("decoder", memory=memory, ahead=ahead, band=np.array(band))["frames"]  # [1, N, r * M]
        return groups.reshape(1, groups.shape[1] * self.config["group"], -1)

    def _stream(
        self, sentences: Iterator[str], voice: str | np.ndarray, speed: float, rng: np.random.Generator
    ) -> Iterator[Spoken]:
        for sentence in sentences:
            with self._lock:
                spoken = self._synthesize(sentence, voice, speed, rng)
            yield spoken

    def _synthesize(self, sentence: str, voice: str | np.ndarray, speed: float, rng: np.random.Generator) -> Spoken:
        # text to symbols
        symbols = self.symbols(sentence, voice)
        if len(symbols) > self.config["positions"]:
            raise ValueError(
                f"The sentence {sentence[:20]!r}... has {len(symbols)} symbols, and the model positions for "
                f"{self.config['positions']}. Cut it into shorter ones with full stops."
            )

        # symbols to embeddings with pitch and energy
        encoded = self.run("encoder", **self.encoder_inputs(symbols, voice))
        if isinstance(voice, str):
            speaker = encoded["speaker_embedding"]  # [1, T, C]
        else:
            speaker = np.tile(voice, (1, len(symbols), 1))  # [1, T, E]
        embeddings = {"emotion_embedding": encoded["emotion_embedding"], "speaker_embedding": speaker}
        adapted = self.run("variance", text=encoded["text"], **embeddings)

        # durations in frames
        durations = self.durations(adapted["condition"]) / speed  # [T]
        if not 0.5 <= durations.max() < MAX_SYMBOL_FRAMES:
            raise ValueError(f"The model in {self.folder} gives symbols no sensible lengths. Convert the voice again.")
        frames = frames_of(durations)  # [T]
        group = self.config["group"]
        token, place = stretch(frames, group)  # [N * r] each

        # symbols to mel spectrogram
        memory = self.run("memory", adapted=adapted["adapted"], token=token[None], place=place[None], **embeddings)
        decoded = self.decode(memory["memory"], memory["ahead"], band_of(durations, group))  # [1, N * r, M]
        decoded = decoded[:, : frames.sum()]  # [1, F, M], without the padding of the last group
        mel = self.run("finish", decoded=decoded)["mel"][0]  # [M, F]

        # mel spectrogram to sound
        character_frames = _character_frames(self.frontend.read(sentence), symbols, frames)
        return Spoken(sentence, self.vocode(mel, rng), self.config["sample_rate"], mel, character_frames)


def parts_of(config: dict) -> list[str]:
    """The models of a voice, a subset of SUBMODELS. config: the content of voice.json."""
    return [part for part in SUBMODELS if part != "source" or config["sines"]]


def frames_of(durations: np.ndarray) -> np.ndarray:
    """Durations rounded to whole frames, int64."""
    return (durations + 0.5).astype(np.int64)


def band_of(durations: np.ndarray, r: int) -> int:
    """The number of groups of r frames that the decoder attends to on either side: that of the longest symbol."""
    return int(durations.max() / r + 0.5)


def stretch(frames: np.ndarray, r: int) -> tuple[np.ndarray, np.ndarray]:
    """For every frame the number of its symbol, and its place in that symbol, counted from 1.

    frames: [T] int64, the number of frames of every symbol. Returns two arrays [N * r] int64; frames that pad the last
    group of r have 0 in both.
    """
    padding = -int(frames.sum()) % r
    token = np.repeat(np.arange(len(frames)), frames)
    place = np.arange(1, len(token) + 1) - np.repeat(np.cumsum(frames) - frames, frames)
    return np.pad(token, (0, padding)), np.pad(place, (0, padding))


def source_inputs(config: dict, frames: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs of the source for a number of frames: `phase` [1, H, 1] in radians, and `noise` [1, H, S].

    The phase of the first sine is 0. config: the content of voice.json.
    """
    sines = config["sines"]
    phase = rng.uniform(-np.pi, np.pi, (1, sines, 1)).astype(np.float32)
    phase[:, 0] = 0
    return {"phase": phase, "noise": rng.standard_normal((1, sines, frames * config["hop"]), np.float32)}


def read_embedding(path: Path, size: int) -> np.ndarray:
    """The speaker embedding [size] in a .npy file. Raises ValueError for other content."""
    try:
        embedding = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Give a .npy file with a speaker's embedding.") from error
    return checked_embedding(embedding, size, path)


def checked_embedding(embedding: np.ndarray, size: int, source: str | Path) -> np.ndarray:
    """The embedding as [size] float32. source: names it in the ValueError that other content raises."""
    try:
        with np.errstate(over="ignore"):
            values = np.asarray(embedding).astype(np.float32).ravel()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source} holds no numbers. Give a speaker's embedding, {size} of them.") from error
    if values.size != size:
        raise ValueError(f"{source} has {values.size} numbers. A speaker's embedding of this voice has {size}.")
    if not np.isfinite(values).all() or not values.any():
        raise ValueError(f"{source} has values that are not finite, or only zeros. Compute the embedding again.")
    return values


def _read_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = set(CONFIG_KEYS) - set(config)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Name the folder of a converted voice.") from error
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}. Convert the voice again.")
    return config


def _read_model(core: ov.Core, path: Path) -> ov.Model:
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise ValueError(f"{path} is missing or damaged. Convert the voice again.") from error


def _character_frames(phrases: list, symbols: list[Symbol], frames: np.ndarray) -> list[tuple[str, int]]:
    """The number of frames of every character and break. phrases: of `Frontend.read`; frames: [T]."""
    texts = iter(syllable.text for feet, _ in phrases for foot in feet for word in foot for syllable in word)
    counts: list[tuple[str, int]] = []
    for symbol, count in zip(symbols, frames.tolist(), strict=True):
        if symbol.syllable_flag == "s_end":  # the second symbol of a syllable
            text, first = counts[-1]
            counts[-1] = (text, first + count)
        elif symbol.syllable_flag == "s_none":  # a break
            counts.append((symbol.sy, count))
        else:
            counts.append((next(texts), count))
    return counts
