"""Sound in and out: recordings of voices, read and checked, and WAV files that say of themselves that they are made.

Needs numpy and scipy, and av (FFmpeg) for other files than WAV. S: samples.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly

SHORTEST, LONGEST = 3, 10  # seconds of a recording: what the model was trained to continue
RATES = range(8_000, 384_001)  # Hz of recordings
LARGEST = 100_000_000  # bytes of a WAV file: more than ten seconds take with eight channels
SILENT = 1e-3  # amplitude, -60 dB
QUIET = 0.01  # of the loudest moment, -40 dB: nobody speaks there
BEFORE, AFTER = 0.5, 1.0  # seconds without a word at the ends that nobody minds
FLAT, CLIPS = 0.99, 10  # amplitude of three equal samples in a row, and how often: it was cut off
SLOWEST, FASTEST = 4, 24  # phones a second: slow dictation has two syllables of two, the fastest talkers eight of three
MARK = "Synthetic speech: a cloned voice, made with GPT-SoVITS"
SOFTWARE = "GPT-SoVITS on OpenVINO"
Sound = str | Path | tuple[np.ndarray, int]


class Recording(NamedTuple):
    """A checked recording."""

    samples: np.ndarray  # [S] float32, the mean of all channels
    rate: int  # Hz
    spoken: float  # seconds from the first sound to the last
    notes: list[str]  # what whoever recorded it should know

    def at(self, rate: int) -> np.ndarray:
        """[S] float32 in -1..1 at another rate in Hz."""
        common = math.gcd(rate, self.rate)
        samples = resample_poly(self.samples, rate // common, self.rate // common)
        return (samples / max(1, np.abs(samples).max())).astype(np.float32)

    def check_words(self, phones: int) -> list[str]:
        """A note if nobody can speak so many phones in this time: then other words were recorded."""
        pace = phones / self.spoken
        if SLOWEST <= pace <= FASTEST:
            return []
        much = "much" if pace > FASTEST else "little"
        return [
            f"The reference's text is too {much} for {self.spoken:.1f} s of speech ({pace:.0f} phones a second; people "
            f"speak {SLOWEST} to {FASTEST}). Write down all that is said in the recording, and only that."
        ]


def read(source: Sound) -> Recording:
    """A reference to clone: a file with sound of any kind, or (samples [S] or [S, channels], rate in Hz).

    Samples are floats in -1..1 or integers of their full range. Raises ValueError for what cannot be read, is shorter
    than 3 or longer than 10 seconds, silent, or holds values that are no numbers.
    """
    if isinstance(source, str | Path):
        name, (samples, rate) = Path(source).name, _from_file(Path(source))
    else:
        name, (samples, rate) = "The recording", _pair(source)
    if rate not in RATES:
        raise ValueError(f"{name} has {rate} samples a second. Give one with 8000 or more.")
    samples = _floats(samples, name)
    seconds = len(samples) / rate
    if not SHORTEST <= seconds <= LONGEST:
        which = "short" if seconds < SHORTEST else "long"
        raise ValueError(
            f"{name} is too {which}: {'more than ' if seconds > LONGEST else ''}{min(seconds, LONGEST):.1f} s. "
            f"Give {SHORTEST} to {LONGEST} seconds of one voice."
        )
    mono = samples.mean(1)
    if not np.isfinite(mono).all():
        raise ValueError(f"{name} holds values that are no numbers. Export it again.")
    if np.abs(mono).max() < SILENT:
        raise ValueError(f"{name} is silent. Record it again, nearer to the microphone.")
    first, last = _ends(mono, rate)
    notes = []
    if first > BEFORE or seconds - last > AFTER:
        notes.append(
            f"{name} has {first:.1f} s without speech at its beginning and {seconds - last:.1f} s at its end. "
            "Cut them off: the model takes up the pauses, too."
        )
    if _clipped(samples):
        notes.append(f"{name} is clipped: its loudest parts are cut off, and the voice will sound so. Record it anew.")
    return Recording(mono, rate, last - first, notes)


def write(path: str | Path, samples: np.ndarray, rate: int) -> None:
    """Write samples [S], clipped to -1..1, to a .wav file of 16 bits that is marked as synthetic speech.

    The file is there only when it is whole: whatever fails, one that was there stays. Raises ValueError for another
    ending of the name, and for samples that are no numbers.
    """
    path = Path(path)
    check_name(path)
    if np.ndim(samples) != 1 or not np.isfinite(samples).all():
        raise ValueError("The sound to write is no row of finite samples. Make it again.")
    data = (np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes()
    info = _chunk(b"ICMT", MARK.encode() + b"\0") + _chunk(b"ISFT", SOFTWARE.encode() + b"\0")
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)  # PCM, one channel
    chunks = _chunk(b"fmt ", form) + _chunk(b"LIST", b"INFO" + info) + _chunk(b"data", data)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(_chunk(b"RIFF", b"WAVE" + chunks))
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_name(path: Path) -> None:
    """Raise ValueError for a name that `write` does not take."""
    if path.suffix.lower() != ".wav":
        raise ValueError(f"The sound is written to a .wav file, not to {path.name}. Give it another name.")


def is_marked(path: str | Path) -> bool:
    """Whether a file is a WAV file with the mark that `write` leaves. Raises OSError for one that is not there."""
    data = Path(path).read_bytes()
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return False
    lists = [body for name, body in _chunks(data[12:]) if name == b"LIST" and body[:4] == b"INFO"]
    return any((b"ICMT", MARK.encode()) == (name, text.rstrip(b"\0")) for x in lists for name, text in _chunks(x[4:]))


def _chunk(name: bytes, body: bytes) -> bytes:
    """RIFF chunks begin at even places."""
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and bodies of RIFF chunks."""
    place = 0
    while place + 8 <= len(data):
        (size,) = struct.unpack_from("<I", data, place + 4)
        yield data[place : place + 4], data[place + 8 : place + 8 + size]
        place += 8 + size + size % 2


def _pair(source: object) -> tuple[np.ndarray, int]:
    match source:
        case (samples, rate) if isinstance(rate, Integral) and np.ndim(samples) in (1, 2):
            return np.asarray(samples), int(rate)
    raise ValueError("A recording is a file's name, or samples [S] or [S, channels] and their rate in Hz.")


def _floats(samples: np.ndarray, name: str) -> np.ndarray:
    """[S, channels] float32 in -1..1."""
    if samples.dtype.kind not in "fiu":
        raise ValueError(f"{name} holds {samples.dtype}, no samples. Give floats in -1..1 or integers.")
    samples = samples[:, None] if samples.ndim == 1 else samples
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    half = 2.0 ** (8 * samples.itemsize - 1)
    return ((samples - half if samples.dtype.kind == "u" else samples) / half).astype(np.float32)


def _from_file(path: Path) -> tuple[np.ndarray, int]:
    if not path.is_file():
        raise ValueError(f"{path} is not there. Correct its name.")
    with path.open("rb") as file:
        wav = file.read(4) in (b"RIFF", b"RIFX", b"RF64")
    if not wav:
        return _decoded(path)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path.name} is too long. Give {SHORTEST} to {LONGEST} seconds of one voice.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks beside the sound
            rate, samples = wavfile.read(path)
        return samples, rate
    except (ValueError, struct.error, EOFError, ZeroDivisionError):  # compressed, or damaged
        return _decoded(path)


def _decoded(path: Path) -> tuple[np.ndarray, int]:
    """The sound of any file through FFmpeg, [S, channels], a little more than LONGEST at most."""
    try:
        import av
    except ImportError as error:
        raise ValueError(f"{path.name} is no plain WAV file. Give one, or install av to read others.") from error
    blocks = []
    try:
        with av.open(f"file:{path}") as container:  # a colon in the name is no protocol
            if not container.streams.audio:
                raise ValueError(f"{path.name} holds no sound. Give a file that does.")
            stream = container.streams.audio[0]
            resampler, rate = av.AudioResampler("fltp", None, stream.rate), stream.rate
            for frame in container.decode(stream):
                blocks += [block.to_ndarray().T for block in resampler.resample(frame)]
                if sum(map(len, blocks)) > (LONGEST + 1) * rate:
                    break
    except av.FFmpegError as error:
        raise ValueError(
            f"{path.name} cannot be read as sound ({error.strerror}): it is damaged or of an unknown format. Give "
            "another."
        ) from error
    if not blocks:
        raise ValueError(f"{path.name} holds no sound that can be decoded. Give another file.")
    return np.concatenate(blocks), rate


def _ends(samples: np.ndarray, rate: int) -> tuple[float, float]:
    """Seconds at which the first sound begins and the last one ends, of those that are not QUIET."""
    size = rate // 50
    blocks = np.pad(samples, (0, -len(samples) % size)).reshape(-1, size)
    level = np.sqrt(np.square(blocks).mean(1))
    loud = np.flatnonzero(level > QUIET * level.max())
    return float(loud[0] * size / rate), min((loud[-1] + 1) * size, len(samples)) / rate


def _clipped(samples: np.ndarray) -> bool:
    """Whether waves end in a flat top."""
    equal = (samples[2:] == samples[1:-1]) & (samples[1:-1] == samples[:-2])
    return int((equal & (np.abs(samples[2:]) >= FLAT)).sum()) >= CLIPS
