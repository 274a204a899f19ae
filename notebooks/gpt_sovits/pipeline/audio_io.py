"""Sound in and out: recordings of voices, read and checked, and WAV files that are marked as synthetic speech.

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

MIN_RECORDING_S, MAX_RECORDING_S = 3, 10  # what the model was trained to continue
RATES_HZ = range(8_000, 384_001)  # of recordings
MAX_WAV_BYTES = 100_000_000  # more than ten seconds take with eight channels
SILENCE_AMPLITUDE = 1e-3  # -60 dB
QUIET_SHARE = 0.01  # of the loudest moment's level, -40 dB: nobody speaks there
MAX_SILENCE_BEFORE_S, MAX_SILENCE_AFTER_S = 0.5, 1.0  # without a warning
CLIPPED_AMPLITUDE, MIN_CLIPS = 0.99, 10  # three equal samples in a row at this level, so often, are clipping
# slow dictation has two syllables of two phonemes a second, the fastest talkers eight of three
MIN_PHONEMES_PER_S, MAX_PHONEMES_PER_S = 4, 24
MARK = "Synthetic speech: a cloned voice, made with GPT-SoVITS"
SOFTWARE = "GPT-SoVITS on OpenVINO"
Sound = str | Path | tuple[np.ndarray, int]


class Recording(NamedTuple):
    """A checked recording."""

    samples: np.ndarray  # [S] float32, the mean of all channels
    rate: int  # Hz
    speech_s: float  # from the first sound to the last
    notes: list[str]  # warnings for whoever recorded it

    def at(self, rate: int) -> np.ndarray:
        """[S] float32 in -1..1 at another rate in Hz."""
        common = math.gcd(rate, self.rate)
        samples = resample_poly(self.samples, rate // common, self.rate // common)
        return within_full_scale(samples).astype(np.float32)

    def check_words(self, phones: int) -> list[str]:
        """A warning if nobody speaks so many phonemes in this time: then the words are not the recorded ones."""
        per_s = phones / self.speech_s
        if MIN_PHONEMES_PER_S <= per_s <= MAX_PHONEMES_PER_S:
            return []
        many = "many" if per_s > MAX_PHONEMES_PER_S else "few"
        return [
            f"The words are too {many} for {self.speech_s:.1f} s of speech ({per_s:.1f} phonemes a second; "
            f"people speak {MIN_PHONEMES_PER_S} to {MAX_PHONEMES_PER_S}). Write down all that is said in the "
            "recording, and only that."
        ]


def within_full_scale(samples: np.ndarray) -> np.ndarray:
    """Samples scaled to -1..1 where they exceed it."""
    return samples / max(1, np.abs(samples).max())


def read(source: Sound) -> Recording:
    """A recording of a voice to clone: a file with sound of any kind, or (samples [S] or [S, channels], rate in Hz).

    Samples are floats in -1..1 or integers of their full range. Raises ValueError for what cannot be read, is shorter
    than 3 or longer than 10 seconds, silent, or holds values that are no numbers.
    """
    if isinstance(source, str | Path):
        name, (samples, rate) = Path(source).name, _from_file(Path(source))
    else:
        name, (samples, rate) = "The recording", _pair(source)
    if rate not in RATES_HZ:
        raise ValueError(f"{name} has {rate} samples a second. Give one with 8,000 to 384,000.")
    samples = _floats(samples, name)
    seconds = len(samples) / rate
    if not MIN_RECORDING_S <= seconds <= MAX_RECORDING_S:
        which = "short" if seconds < MIN_RECORDING_S else "long"
        length = f"more than {MAX_RECORDING_S:.1f} s" if seconds > MAX_RECORDING_S else f"{seconds:.1f} s"
        raise ValueError(
            f"{name} is too {which}: {length}. Give {MIN_RECORDING_S} to {MAX_RECORDING_S} seconds of one voice."
        )
    mono = samples.mean(1)
    if not np.isfinite(mono).all():
        raise ValueError(f"{name} holds values that are no numbers. Export it again.")
    if np.abs(mono).max() < SILENCE_AMPLITUDE:
        raise ValueError(f"{name} is silent. Record it again, nearer to the microphone.")
    first, last = _ends(mono, rate)
    notes = []
    if first > MAX_SILENCE_BEFORE_S or seconds - last > MAX_SILENCE_AFTER_S:
        notes.append(
            f"{name} has {first:.1f} s without speech at its beginning and {seconds - last:.1f} s at its end. "
            "Cut them off: the model takes up the pauses, too."
        )
    if _clipped(samples):
        notes.append(f"{name} is clipped: its loudest parts are cut off, and the voice will sound so. Record it anew.")
    return Recording(mono, rate, last - first, notes)


def write(path: str | Path, samples: np.ndarray, rate: int) -> None:
    """Write samples [S], clipped to -1..1, to a .wav file of 16 bits that is marked as synthetic speech.

    The file is written whole or not at all: a failure leaves an earlier one as it was. Raises ValueError for another
    ending of the name, and for samples that are not finite.
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
    entries = [entry for body in lists for entry in _chunks(body[4:])]
    return any(name == b"ICMT" and text.rstrip(b"\0") == MARK.encode() for name, text in entries)


def _chunk(name: bytes, body: bytes) -> bytes:
    """A RIFF chunk; chunks begin at even offsets."""
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and bodies of RIFF chunks."""
    offset = 0
    while offset + 8 <= len(data):
        (size,) = struct.unpack_from("<I", data, offset + 4)
        yield data[offset : offset + 4], data[offset + 8 : offset + 8 + size]
        offset += 8 + size + size % 2


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
    if path.stat().st_size > MAX_WAV_BYTES:
        raise ValueError(f"{path.name} is too long. Give {MIN_RECORDING_S} to {MAX_RECORDING_S} seconds of one voice.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # about chunks other than the sound
            rate, samples = wavfile.read(path)
        return samples, rate
    except (ValueError, struct.error, EOFError, ZeroDivisionError):  # compressed, or damaged
        return _decoded(path)


def _decoded(path: Path) -> tuple[np.ndarray, int]:
    """The sound of any file through FFmpeg, [S, channels], a little more than MAX_RECORDING_S at most."""
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
                if sum(map(len, blocks)) > (MAX_RECORDING_S + 1) * rate:
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
    """Seconds at which the first sound begins and the last one ends, of those that are not QUIET_SHARE."""
    size = rate // 50
    blocks = np.pad(samples, (0, -len(samples) % size)).reshape(-1, size)
    level = np.sqrt(np.square(blocks).mean(1))
    loud = np.flatnonzero(level > QUIET_SHARE * level.max())
    return float(loud[0] * size / rate), min((loud[-1] + 1) * size, len(samples)) / rate


def _clipped(samples: np.ndarray) -> bool:
    """Whether waves end in a flat top."""
    equal = (samples[2:] == samples[1:-1]) & (samples[1:-1] == samples[:-2])
    return int((equal & (np.abs(samples[2:]) >= CLIPPED_AMPLITUDE)).sum()) >= MIN_CLIPS
