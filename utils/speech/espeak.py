"""Speech by espeak-ng, with the times of all phonemes.

espeak-ng is called through its C library (`speak_lib.h`); the wheel `espeakng-loader` holds the library and its data.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import espeakng_loader
import numpy as np
from scipy.signal import resample_poly

from utils.speech.speaker_encoder import SAMPLE_RATE

ESPEAK_SAMPLE_RATE = 22050  # Hz, of espeak-ng's own sound
SPEAKING_RATES = range(80, 451)  # words a minute that espeak-ng accepts
PITCHES = range(101)  # that espeak-ng accepts; 50 is the voice's own
STRESS = "',%="  # marks that espeak-ng puts before a phoneme
PAUSE = "_"
ECHO_LEVEL = 0.1  # of a phoneme's greatest amplitude: an echo stays below, the phoneme itself does not


@dataclass(frozen=True)
class Speech:
    """samples: float32 mono at 16 kHz in -1..1; phonemes: (symbol, start s, end s), in order, without gaps."""

    text: str
    samples: np.ndarray
    phonemes: list[tuple[str, float, float]]

    @property
    def seconds(self) -> float:
        """Length of the sound."""
        return len(self.samples) / SAMPLE_RATE


def synthesise(
    text: str, voice: str = "en-us", variant: str = "", rate: int = 170, pitch: int = 50, settings: str = ""
) -> Speech:
    """Speak `text` with an espeak-ng voice and, where given, one of its variants ("m1", "f3", "klatt2", ...).

    rate: words a minute (80..450). pitch: 0..100. settings: lines of a voice file, for a variant that espeak-ng does
    not have ("formant 1 90 100 120", "pitch 80 130"; the format is in docs/voices.md of espeak-ng); they replace
    `variant`.

    Times of phonemes are exact to about 10 ms, less so in the few variants with a strong echo. The library is loaded
    anew for each call (6 ms), because what it said before changes its jitter: so the same call gives the same samples,
    except on macOS, which does not unload libraries. The variants Reed and caleb are never twice the same, and f3 in
    some sentences not always. Only one thread may call this at a time. Raises ValueError for a text without words, an
    unknown voice or variant, both a variant and settings, a rate or pitch out of range, and OSError when espeak-ng
    cannot start.
    """
    if rate not in SPEAKING_RATES:
        raise ValueError(f"rate is {rate} words a minute: espeak-ng takes whole numbers from 80 to 450.")
    if pitch not in PITCHES:
        raise ValueError(f"pitch is {pitch}: espeak-ng takes whole numbers from 0 to 100.")
    if variant and settings:
        raise ValueError("settings replace the variant, so both cannot be used: give one of them.")
    if variant and not (_data() / "voices" / "!v" / variant).is_file():
        raise ValueError(
            f"espeak-ng has no variant {variant!r}: look into its data folder, voices/!v, for their names."
        )
    del _blocks[:], _events[:]
    with _espeak() as library:
        if library.espeak_SetVoiceByName("+".join(filter(None, [voice, variant])).encode()):
            raise ValueError(f"espeak-ng has no voice {voice!r}. English ones are en-us, en-gb, en-gb-scotland.")
        if settings:
            _change_voice(library, voice, settings)
        library.espeak_SetParameter(_RATE_PARAMETER, rate, 0)
        library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        encoded = text.encode()
        library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded) + 1), 0, _BY_CHARACTER, 0, _UTF8, None, None)
    sound = np.concatenate([np.zeros(0, np.int16), *_blocks])
    phonemes = _phonemes(sound)
    if all(symbol == PAUSE for symbol, _, _ in phonemes):
        raise ValueError(f"There is nothing to say in {text!r}: give a text with words.")
    samples = resample_poly(sound.astype(np.float32) / 32768, SAMPLE_RATE, ESPEAK_SAMPLE_RATE)
    return Speech(text, np.clip(samples, -1, 1).astype(np.float32), phonemes)


# espeak-ng's C interface, speak_lib.h revision 12
_SYNCHRONOUS, _PHONEME_EVENTS, _DO_NOT_EXIT = 2, 0x0001, 0x8000
_RATE_PARAMETER, _PITCH_PARAMETER, _BY_CHARACTER, _UTF8 = 1, 3, 1, 1
_PHONEME = 7  # type of event; 0 ends a list of them


class _Event(ctypes.Structure):
    """espeak_EVENT; of the union at its end only the phoneme's name is used."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    ]


_unload = _ctypes.FreeLibrary if hasattr(_ctypes, "FreeLibrary") else _ctypes.dlclose
_blocks: list[np.ndarray] = []
_events: list[tuple[str, int]] = []  # phoneme, sample at which it begins


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
def _receive(sound, count, events) -> int:
    if count > 0:
        _blocks.append(np.ctypeslib.as_array(sound, (count,)).copy())
    index = 0
    while events[index].type:
        if events[index].type == _PHONEME:
            _events.append((events[index].name.decode(), events[index].sample))
        index += 1
    return 0


@contextmanager
def _espeak() -> Iterator[ctypes.CDLL]:
    """The library as it is after loading, unloaded at the end."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    try:
        data = _data()
        rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(data).encode(), _PHONEME_EVENTS | _DO_NOT_EXIT)
        if rate != ESPEAK_SAMPLE_RATE:
            raise OSError(
                f"espeak-ng found no voices in {data}: install espeakng-loader again, in a folder with a short name."
            )
        library.espeak_SetSynthCallback(_receive)
        yield library
        library.espeak_Terminate()
    finally:
        _unload(library._handle)


def _change_voice(library: ctypes.CDLL, voice: str, settings: str) -> None:
    """Load the voice once more, from a file with its own lines and the settings below them."""
    (own,) = (path for path in _data().joinpath("lang").rglob("*") if path.name.lower() == voice)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "voice"
        file.write_text(f"{own.read_text(encoding='utf-8')}\n{settings}\n", encoding="utf-8")
        if library.espeak_SetVoiceByFile(str(file).encode()):
            raise OSError(f"espeak-ng could not read {file}. Set TMPDIR to a folder with a short name.")


def _data() -> Path:
    return Path(espeakng_loader.get_data_path())


def _phonemes(sound: np.ndarray) -> list[tuple[str, float, float]]:
    """The events as phonemes, with times in seconds, over the sound int16 [n]; neighbouring pauses are merged.

    espeak-ng reports p, t and k at their burst. The silence before the burst, during which the lips are already
    closed, counts to the phoneme of the burst and not to the one before.
    """
    level = np.abs(sound.astype(np.int32))
    reported = [(PAUSE if name.startswith(PAUSE) else name.lstrip(STRESS), sample) for name, sample in _events]
    starts = [0] * len(reported)
    for index, ((before, _), (symbol, sample)) in enumerate(pairwise(reported), 1):
        previous = level[starts[index - 1] : sample]
        if PAUSE in (before, symbol) or not previous.any():
            starts[index] = sample
        else:
            starts[index] = starts[index - 1] + int(np.flatnonzero(previous > ECHO_LEVEL * previous.max())[-1]) + 1
    phonemes: list[tuple[str, float, float]] = []
    for (symbol, _), start, stop in zip(reported, starts, [*starts[1:], len(sound)], strict=True):
        if phonemes and symbol == phonemes[-1][0] == PAUSE:
            phonemes[-1] = (PAUSE, phonemes[-1][1], stop / ESPEAK_SAMPLE_RATE)
        elif stop > start:
            phonemes.append((symbol, start / ESPEAK_SAMPLE_RATE, stop / ESPEAK_SAMPLE_RATE))
    return phonemes
