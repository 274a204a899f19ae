"""Clips of drawn heads that speak: crops as the generator gets them, sound, and the true shape of the mouth.

A clip is a person (a drawn head, or a photo made to speak), a sentence, a voice and a slight sway of the head. The
crops come from whole pictures through the same cut as in the pipeline, from boxes as unsteady as a detector's.
"""

from __future__ import annotations

import wave
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import matplotlib
import numpy as np
import skimage.data

from notebooks.wav2lip.data import heads
from notebooks.wav2lip.data.speech import HELD_OUT_VOICES, SAMPLE_RATE, VOICES, Speech, articulation, synthesise
from notebooks.wav2lip.pipeline import PADS, chunk_starts, melspectrogram
from notebooks.wav2lip.pipeline.media import Writer
from utils import paths
from utils.speech.sentences.english import HELD_OUT, TRAINING

FPS = 25
CROP, WINDOW = 96, 16  # pixels; mel frames
PHOTO_SHARE = 0.25  # of the training clips show a photo's variations instead of a drawn head
SAMPLE_VOICE = 7  # seed of the sentence among the samples
UNSEEN = 100_000  # seeds from here on are people that training never sees


@dataclass(frozen=True)
class Clip:
    """n frames at 25 a second: crops [n, 96, 96, 3] uint8 BGR, mel [80, T], mouth [n, 3], the mouth's place in the
    crop [n, 2] (x, y in pixels), and the first mel frame of each frame's window [n]."""

    faces: np.ndarray
    mel: np.ndarray
    mouth: np.ndarray
    place: np.ndarray
    starts: np.ndarray

    def windows(self, frames) -> np.ndarray:
        """Mel windows [len(frames), 1, 80, 16] of some frames."""
        return np.stack([self.mel[:, s : s + WINDOW] for s in self.starts[frames]])[:, None]


def hopper() -> np.ndarray:
    """Rear Admiral Grace Hopper, official portrait (U.S. Navy, public domain), [600, 512, 3] BGR, out of matplotlib."""
    return cv2.imread(str(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"))


def astronaut() -> np.ndarray:
    """Eileen Collins, portrait (NASA, public domain), [512, 512, 3] BGR, out of scikit-image; not trained on."""
    return np.ascontiguousarray(skimage.data.astronaut()[..., ::-1])


def say(text: str, voices, rng: np.random.Generator) -> Speech:
    """The text in one of the voices, at a random pace, pitch and loudness, over faint noise."""
    rate, pitch = int(rng.integers(130, 210)), int(rng.integers(25, 75))
    spoken = synthesise(text, *voices[rng.integers(len(voices))], rate=rate, pitch=pitch)
    samples = spoken.samples * rng.uniform(0.25, 1.0)
    noise = rng.standard_normal(len(samples)).astype(np.float32) * 10 ** rng.uniform(-4.5, -2.3)
    return Speech((samples + noise).astype(np.float32), spoken.phones)


def jumble(sentences, rng: np.random.Generator) -> str:
    """Nine words from the sentences in random order: phones beside other phones than in any sentence."""
    return " ".join(rng.choice(" ".join(sentences).split(), 9))


def sway(count: int, rng: np.random.Generator) -> np.ndarray:
    """A slow movement of the head, [count, 4] for `Head.frame`."""
    t = np.arange(count)[:, None] / FPS
    speed, phase = rng.uniform(0.15, 0.6, 4), rng.uniform(0, 2 * np.pi, 4)
    reach = rng.uniform(0.3, 1.0, 4) * (4, 3, 0.04, 0.025)
    return np.array([0, 0, 0, 1]) + reach * np.sin(2 * np.pi * speed * t + phase)


def pictures(head: heads.Head, mouth: np.ndarray, motion: np.ndarray, size: int = heads.SIZE):
    """Frames [size, size, 3] of a head whose mouth takes the shapes [n, 3], one after another."""
    for shape, move in zip(mouth, motion, strict=True):
        yield head.frame(*shape, size=size, motion=move)


def listen(speech: Speech) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mel [80, T], mouth [n, 3] and the first mel frame of each window [n], for the n frames whose window is whole."""
    mel = melspectrogram(speech.samples)
    count = int((mel.shape[1] - WINDOW) * FPS / 80)
    mouth = articulation(speech.phones, (np.arange(count) + 0.5) / FPS)
    return mel, mouth, np.asarray(chunk_starts(mel.shape[1], FPS))[:count]


def record(head: heads.Head, speech: Speech, rng: np.random.Generator) -> Clip:
    """`head` says `speech`, filmed and cut to crops."""
    mel, mouth, starts = listen(speech)
    motion = sway(len(mouth), rng)
    size = int(rng.choice([192, 256, 320]))
    steady = rng.normal(0, 0.035, 4)  # how this detector sees this face: a share of the box's size
    faces, places = [], []
    for picture, move in zip(pictures(head, mouth, motion, size), motion, strict=True):
        corners = np.array(head.box).reshape(2, 2)
        extent = corners[1] - corners[0]
        centre, place = (head.moved(point, move) * size / heads.SIZE for point in (corners.mean(0), head.lips.centre))
        wobble = (steady + rng.normal(0, 0.006, 4)).reshape(2, 2) * extent
        top_left, bottom_right = (centre + (wobble[k] + (k - 0.5) * extent) * size / heads.SIZE for k in (0, 1))
        x1, y1 = np.maximum(0, top_left).astype(int)
        x2, y2 = np.minimum(size, bottom_right + (0, PADS[1])).astype(int)
        faces.append(cv2.resize(picture[y1:y2, x1:x2], (CROP, CROP)))
        places.append((place - (x1, y1)) * CROP / (x2 - x1, y2 - y1))
    return Clip(np.stack(faces), mel, mouth, np.array(places, np.float32), starts)


def person(seed: int) -> heads.Head:
    """The person of a seed: a drawn head, or at times Grace Hopper's photo in some variation (before UNSEEN)."""
    if seed < UNSEEN and np.random.default_rng([seed, 30]).random() < PHOTO_SHARE:
        return heads.photo_head(hopper(), heads.HOPPER, seed)
    return heads.drawn_head(seed)


def text(sentences, rng: np.random.Generator) -> str:
    """One of the sentences."""
    return sentences[rng.integers(len(sentences))]


def training_clip(seed: int) -> Clip:
    """Clip number `seed` of the training data."""
    rng = np.random.default_rng([seed, 31])
    return record(person(seed), say(text(TRAINING, rng), VOICES, rng), rng)


def training_sound(seed: int) -> Clip:
    """A clip without pictures, of jumbled words."""
    rng = np.random.default_rng([seed, 33])
    mel, mouth, starts = listen(say(jumble(TRAINING, rng), VOICES, rng))
    return Clip(np.empty((len(mouth), 0, 0, 3), np.uint8), mel, mouth, np.empty((len(mouth), 2), np.float32), starts)


def held_out_speech(rng: np.random.Generator) -> Speech:
    """A sentence that training never saw, in a voice that it never heard."""
    return say(text(HELD_OUT, rng), HELD_OUT_VOICES, rng)


def held_out_clip(seed: int) -> Clip:
    """A clip of a person, a sentence and a voice that training never saw."""
    rng = np.random.default_rng([seed, 32])
    return record(person(UNSEEN + seed), held_out_speech(rng), rng)


def sample_video(path: str | Path, size: tuple[int, int], seconds: float, seed: int = UNSEEN) -> None:
    """Write an MP4 of a drawn head that speaks, again and again, amid pictures of `size` (width, height)."""
    rng = np.random.default_rng([seed, 34])
    speech = say(text(HELD_OUT, rng), HELD_OUT_VOICES, rng)
    _, mouth, _ = listen(speech)
    head, (width, height) = heads.drawn_head(seed), size
    drawn = list(pictures(head, mouth, sway(len(mouth), rng), height))
    side = (width - height) // 2
    with TemporaryDirectory() as folder:
        voice = Path(folder) / "voice.wav"
        write_sound(voice, np.resize(speech.samples, round(seconds * SAMPLE_RATE)))
        with Writer(path, Fraction(FPS), voice, label=False) as writer:
            for picture in islice(cycle(drawn), round(seconds * FPS)):
                wide = cv2.copyMakeBorder(picture, 0, 0, side, width - height - side, cv2.BORDER_REPLICATE)
                writer.write(cv2.resize(wide, size))


def write_sound(path: str | Path, samples: np.ndarray) -> None:
    """Write mono samples in -1..1 at 16 kHz as a 16-bit WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def main() -> None:
    """Make the samples of lesson and demo: a speaking head, a portrait, and a sentence to say."""
    samples = paths.notebook_dir(__package__) / "samples"
    samples.mkdir(exist_ok=True)
    sample_video(samples / "face.mp4", (256, 256), seconds=4)
    portrait = heads.photo_head(astronaut(), heads.ASTRONAUT).frame(0, 0, 0)  # its smile closed
    cv2.imwrite(str(samples / "astronaut.jpg"), portrait)
    rng = np.random.default_rng(SAMPLE_VOICE)
    write_sound(samples / "voice.wav", held_out_speech(rng).samples)


if __name__ == "__main__":
    main()
