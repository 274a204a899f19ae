"""Mandarin text to speech with a chosen voice: `Synthesizer(folder)(text, speaker) -> (samples, sample_rate)`.

Needs openvino, numpy, pypinyin and jieba. To use it elsewhere copy this file, frontend.py, normalise.py, readings.py
and lexicon.py into one package. The folder of a voice, as `convert.to_ir` writes it:

    voice.json        sample_rate (Hz); hop (samples a frame); group (frames a step of the decoder); positions (symbols
                      of a sentence, at most); embedding (numbers of a speaker's embedding; 0: speakers are in a table);
                      sines (of the vocoder's source; 0: none); tables (symbols: see frontend.standard_tables)
    encoder.xml       symbols to embeddings        variance.xml   pitch and energy to every symbol
    duration.xml      the length of every symbol   memory.xml     symbols to frames, what the decoder reads
    decoder.xml       frames, group after group    finish.xml     the postnet: frames to the mel spectrogram
    source.xml        with sines: pitch to sines   vocoder.xml    mel spectrogram, and sines, to sound
    speakers/         with embedding: NAME.npy for every voice

T: symbols, F: frames, N: groups of r frames, M: mel channels, S: samples (F times hop).
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
PARTS = ("encoder", "variance", "duration", "memory", "decoder", "finish", "source", "vocoder")
SLOWEST, FASTEST = 0.5, 2.0  # speed
LONGEST = 1000  # frames of a symbol; only a checkpoint that is damaged says more
# By default a CPU may compute in bf16: durations would round otherwise, and sines would lose their phase.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


class Spoken(NamedTuple):
    """A sentence that was said."""

    text: str
    samples: np.ndarray  # [S] float32 in -1..1
    sample_rate: int  # Hz
    mel: np.ndarray  # [M, F], what the vocoder was given
    durations: list[tuple[str, int]]  # frames of every character; breaks in between are named #1, #3 and #4

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


class Synthesizer:
    """Says Mandarin text with the voices of a folder.

    folder: see above. properties: OpenVINO's, of the vocoder, whose arithmetic the device chooses by default; all else
    is exact. May be shared by threads: sentences are made one at a time. Raises ValueError for a folder not whole.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        self.folder = Path(folder)
        self.config = _read(self.folder / CONFIG)
        self.frontend = Frontend(self.config["tables"])
        self._embeddings = {file.stem: file for file in sorted((self.folder / SPEAKERS).glob("*.npy"))}
        core, self._requests = ov.Core(), {}
        for part in parts_of(self.config):
            model = _network(core, self.folder / f"{part}.xml")
            chosen = properties if part == "vocoder" else EXACT
            try:
                self._requests[part] = core.compile_model(model, device, chosen).create_infer_request()
            except RuntimeError as error:
                there = ", ".join(core.available_devices)
                reason = str(error).strip().splitlines()[-1]
                raise ValueError(f"{part} does not run on {device!r}. There are: {there}. ({reason})") from error
        self._alone = threading.Lock()

    @property
    def speakers(self) -> list[str]:
        """The names of the voices."""
        return list(self._embeddings) if self.config["embedding"] else self.frontend.speakers

    def __call__(
        self, text: str, speaker: str | Path | np.ndarray, speed: float = 1.0, seed: int = 0
    ) -> tuple[np.ndarray, int]:
        """The whole text: samples [S] float32 in -1..1, and their rate in Hz. See `stream`."""
        sounds = [spoken.samples for spoken in self.stream(text, speaker, speed, seed)]
        return np.concatenate(sounds), self.config["sample_rate"]

    def stream(
        self, text: str, speaker: str | Path | np.ndarray, speed: float = 1.0, seed: int = 0
    ) -> Iterator[Spoken]:
        """The text sentence by sentence, each as soon as it is made; sounds are to be joined as they are.

        speaker: one of `speakers`; where voices are embeddings also one, or the .npy file of one. speed: 0.5 to 2, of
        the speech. seed: of the phases and the noise in a vocoder with a source.
        Raises ValueError, at once, for a text with nothing to say, a character that cannot be said (Unspeakable), an
        unknown speaker, an embedding of another size or with NaN, another speed or seed; while it goes on, for a
        sentence of more symbols than the model has positions for.
        """
        if not isinstance(text, str):
            raise ValueError(f"The text is {type(text).__name__}, not str. Give the words to say.")
        if not isinstance(speed, int | float | np.number) or not SLOWEST <= speed <= FASTEST:
            raise ValueError(f"The speed is {speed!r}. Choose one from {SLOWEST} to {FASTEST}; 1 is the voice's own.")
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"The seed is {seed!r}. Choose a whole number from 0.")
        who, sentences = self._speaker(speaker), self.frontend.sentences(text)
        return self._stream(sentences, who, speed, np.random.default_rng(seed))

    def _stream(
        self, sentences: Iterator[str], who: str | np.ndarray, speed: float, rng: np.random.Generator
    ) -> Iterator[Spoken]:
        for sentence in sentences:
            with self._alone:
                spoken = self._say(sentence, who, speed, rng)
            yield spoken

    def _speaker(self, speaker: str | Path | np.ndarray) -> str | np.ndarray:
        """A name of the table, or an embedding."""
        size, names = self.config["embedding"], ", ".join(self.speakers)
        if isinstance(speaker, str) and speaker in self.speakers:
            return read_embedding(self._embeddings[speaker], size) if size else speaker
        if not size:
            raise ValueError(f"There is no speaker {str(speaker)[:80]!r}. Choose one of: {names}.")
        if isinstance(speaker, str | Path):
            if Path(speaker).suffix != ".npy":
                raise ValueError(
                    f"There is no speaker {str(speaker)[:80]!r}. Choose one of: {names}; or give the .npy file of one."
                )
            return read_embedding(Path(speaker), size)
        return checked_embedding(speaker, size, "The speaker's embedding")

    def _say(self, sentence: str, who: str | np.ndarray, speed: float, rng: np.random.Generator) -> Spoken:
        named = who if isinstance(who, str) else self.frontend.speakers[0]
        symbols = self.frontend.symbols(sentence, named)
        if len(symbols) > self.config["positions"]:
            raise ValueError(
                f"The sentence {sentence[:20]!r}... has {len(symbols)} symbols, and the model positions for "
                f"{self.config['positions']}. Cut it into shorter ones with full stops."
            )
        ids = {stream: np.array([row]) for stream, row in self.frontend.ids(symbols).items()}
        ling = np.stack([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")], -1)
        given = {"speaker": ids["speaker"]} if isinstance(who, str) else {}
        encoded = self._run("encoder", ling=ling, emotion=ids["emotion"], **given)
        voice = {"emotion_embedding": encoded["emotion_embedding"]}
        voice["speaker_embedding"] = encoded["speaker_embedding"] if given else np.tile(who, (1, len(symbols), 1))
        adapted = self._run("variance", text=encoded["text"], **voice)
        durations = self._durations(adapted["condition"]) / speed
        if not 0.5 <= durations.max() < LONGEST:
            raise ValueError(f"The model in {self.folder} gives symbols no sensible lengths. Convert the voice again.")
        frames, r = frames_of(durations), self.config["group"]
        token, place = stretch(frames, r)
        made = self._run("memory", adapted=adapted["adapted"], token=token[None], place=place[None], **voice)
        decoded = self._decode(made["memory"], made["ahead"], band_of(durations, r))[:, : frames.sum()]
        mel = self._run("finish", decoded=decoded)["mel"][0]
        spelled = _spelled(self.frontend.read(sentence), symbols, frames)
        return Spoken(sentence, self.vocode(mel, rng), self.config["sample_rate"], mel, spelled)

    def vocode(self, mel: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Samples [S] for a mel spectrogram [M, F], as `Spoken.mel` has it. rng: of the source's phases and noise."""
        return self._run("vocoder", **self.vocoder_inputs(mel, rng))["sound"][0, 0]

    def vocoder_inputs(self, mel: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """What the vocoder's model takes for a mel spectrogram [M, F]: `mel` [1, M, F]; with sines the last two
        channels are the pitch in Hz and the voicing, 0 or 1, of which the source makes `source` [1, 1, S]."""
        if not self.config["sines"]:
            return {"mel": mel[None]}
        mel, f0, voiced = np.split(mel[None], [-2, -1], 1)
        given = source_inputs(self.config, mel.shape[2], rng)
        return {"mel": mel, "source": self._run("source", f0=f0, voiced=voiced, **given)["source"]}

    def _run(self, part: str, **inputs: np.ndarray) -> Mapping[str, np.ndarray]:
        """A model's outputs by name."""
        return self._requests[part].infer(inputs, share_inputs=True)

    def _durations(self, condition: np.ndarray) -> np.ndarray:
        """Frames of each symbol, not rounded, [T], for condition [1, T, C]."""
        return np.exp(self._run("duration", condition=condition)["log_durations"][0]) - 1

    def _decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """Frames [1, N * r, M] for memory [1, N, C] and ahead [L, 1, N, 2D]."""
        groups = self._run("decoder", memory=memory, ahead=ahead, band=np.array(band))["frames"]
        return groups.reshape(1, groups.shape[1] * self.config["group"], -1)


def parts_of(config: dict) -> list[str]:
    """Those of PARTS that a voice has. config: of voice.json."""
    return [part for part in PARTS if part != "source" or config["sines"]]


def frames_of(durations: np.ndarray) -> np.ndarray:
    """Durations rounded to frames, int64."""
    return (durations + 0.5).astype(np.int64)


def band_of(durations: np.ndarray, r: int) -> int:
    """How many groups of r frames the decoder looks back and ahead: those of the longest symbol."""
    return int(durations.max() / r + 0.5)


def stretch(frames: np.ndarray, r: int) -> tuple[np.ndarray, np.ndarray]:
    """For every frame its symbol and its place in it, from 1; [F] int64 each, F rounded up to a multiple of r, 0 there.

    frames: [T] int64, how many every symbol has.
    """
    padding = -int(frames.sum()) % r
    token = np.repeat(np.arange(len(frames)), frames)
    place = np.arange(1, len(token) + 1) - np.repeat(np.cumsum(frames) - frames, frames)
    return np.pad(token, (0, padding)), np.pad(place, (0, padding))


def source_inputs(config: dict, frames: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What the source takes beside so many frames: phase [1, H, 1] in radians, 0 for the first sine, and noise
    [1, H, S]. config: of voice.json."""
    sines = config["sines"]
    phase = rng.uniform(-np.pi, np.pi, (1, sines, 1)).astype(np.float32)
    phase[:, 0] = 0
    return {"phase": phase, "noise": rng.standard_normal((1, sines, frames * config["hop"]), np.float32)}


def read_embedding(path: Path, size: int) -> np.ndarray:
    """The speaker's embedding [size] in a .npy file. Raises ValueError for a file with another content."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Give a .npy file with a speaker's embedding.") from error
    return checked_embedding(found, size, path)


def checked_embedding(embedding: np.ndarray, size: int, source: str | Path) -> np.ndarray:
    """The embedding as [size] float32. Raises ValueError, naming its source, when it is none."""
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(embedding).astype(np.float32).ravel()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source} holds no numbers. Give a speaker's embedding, {size} of them.") from error
    if found.size != size:
        raise ValueError(f"{source} has {found.size} numbers. A speaker's embedding of this voice has {size}.")
    if not np.isfinite(found).all() or not found.any():
        raise ValueError(f"{source} has values that are not finite, or only zeros. Compute the embedding again.")
    return found


def _read(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = {"sample_rate", "hop", "group", "positions", "embedding", "sines", "tables"} - set(config)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Name the folder of a converted voice.") from error
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}. Convert the voice again.")
    return config


def _network(core: ov.Core, path: Path) -> ov.Model:
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise ValueError(f"{path} is missing or damaged. Convert the voice again.") from error


def _spelled(read: list, symbols: list[Symbol], frames: np.ndarray) -> list[tuple[str, int]]:
    """Frames of every character or break of a sentence. read: of `Frontend.read`."""
    texts = iter(x.text for feet, _ in read for foot in feet for word in foot for x in word)
    spelled: list[tuple[str, int]] = []
    for symbol, count in zip(symbols, frames.tolist(), strict=True):
        if symbol.syllable_flag == "s_end":
            spelled[-1] = (spelled[-1][0], spelled[-1][1] + count)
        else:
            spelled.append((symbol.sy if symbol.syllable_flag == "s_none" else next(texts), count))
    return spelled
