"""Clips of drawn heads that speak: crops for the generator, sound, and the true shape of the mouth.

A clip combines a person (a drawn or a photographed head), a sentence, a voice and a slight motion of the head. The
crops are cut from whole pictures as in the pipeline, from boxes that tremble like those of a detector.
"""

from __future__ import annotations

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
from notebooks.wav2lip.data.speech import HELD_OUT_VOICES, VOICES, articulation, composed_voice
from notebooks.wav2lip.pipeline import (
    MEL_RATE,
    PADS,
    SAMPLE_RATE,
    SIDE,
    WINDOW,
    chunk_starts,
    generator_face,
    melspectrogram,
)
from notebooks.wav2lip.pipeline.media import Writer
from utils import paths
from utils.speech.espeak import Speech, synthesise
from utils.speech.sentences.english import HELD_OUT, TRAINING
from utils.speech.sound import write_wav

FPS = 25  # frames a second
PHOTO_SHARE = 0.25  # of the training clips that show variations of a photo, not a drawn head
SAMPLE_VOICE_SEED = 7  # of samples/voice.wav
FIRST_HELD_OUT_SEED = 100_000  # seeds from here on give people that training never sees


@dataclass(frozen=True)
class Clip:
    """n frames at 25 a second, with their sound and the true mouths."""

    faces: np.ndarray  # crops [n, 96, 96, 3] uint8, BGR
    mel: np.ndarray  # [80, T]
    mouth: np.ndarray  # [n, 3]: opening, width, visibility
    place: np.ndarray  # [n, 2]: x and y of the mouth in the crop, in pixels
    starts: np.ndarray  # [n]: first mel frame of each frame's window

    def windows(self, frames) -> np.ndarray:
        """Mel windows [len(frames), 1, 80, 16] of some frames."""
        return np.stack([self.mel[:, start : start + WINDOW] for start in self.starts[frames]])[:, None]


def hopper() -> np.ndarray:
    """Rear Admiral Grace Hopper, official portrait (U.S. Navy, public domain), [600, 512, 3] BGR, out of matplotlib."""
    return cv2.imread(str(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"))


def astronaut() -> np.ndarray:
    """Eileen Collins, portrait (NASA, public domain), [512, 512, 3] BGR, out of scikit-image; not trained on."""
    return np.ascontiguousarray(skimage.data.astronaut()[..., ::-1])


def synthesise_varied(text: str, voices, rng: np.random.Generator, composed_share: float = 0) -> Speech:
    """The text in one of the voices, at a random pace, pitch and loudness, with faint noise.

    composed_share: the probability of a composed voice in place of one of `voices`.
    The noise comes from a generator of its own, so that what `rng` draws next does not depend on the sound's length.
    """
    rate, pitch = int(rng.integers(130, 210)), int(rng.integers(25, 75))
    if composed_share and rng.random() < composed_share:
        speech = synthesise(text, rate=rate, pitch=pitch, settings=composed_voice(rng))
    else:
        speech = synthesise(text, *voices[rng.integers(len(voices))], rate=rate, pitch=pitch)
    samples = speech.samples * rng.uniform(0.25, 1.0)
    level = 10 ** rng.uniform(-4.5, -2.3)
    noise = rng.spawn(1)[0].standard_normal(len(samples)).astype(np.float32) * level
    return Speech(speech.text, (samples + noise).astype(np.float32), speech.phonemes)


def shuffled_words(sentences, rng: np.random.Generator) -> str:
    """Nine words of the sentences in random order, in which phonemes meet that do not meet in any sentence."""
    return " ".join(rng.choice(" ".join(sentences).split(), 9))


def head_motion(count: int, rng: np.random.Generator) -> np.ndarray:
    """A slow random motion of the head, [count, 4] for `Head.frame`."""
    t = np.arange(count)[:, None] / FPS
    speed, phase = rng.uniform(0.15, 0.6, 4), rng.uniform(0, 2 * np.pi, 4)
    reach = rng.uniform(0.3, 1.0, 4) * (4, 3, 0.04, 0.025)
    return np.array([0, 0, 0, 1]) + reach * np.sin(2 * np.pi * speed * t + phase)


def pictures(head: heads.Head, mouth: np.ndarray, motion: np.ndarray, size: int = heads.SIZE):
    """Yield frames [size, size, 3] of a head whose mouth takes the shapes [n, 3]; motion: [n, 4]."""
    for shape, move in zip(mouth, motion, strict=True):
        yield head.frame(*shape, size=size, motion=move)


def speech_features(speech: Speech) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mel [80, T], mouth [n, 3] and first mel frame of each window [n], for the n frames with a complete window."""
    mel = melspectrogram(speech.samples)
    count = int((mel.shape[1] - WINDOW) * FPS / MEL_RATE)
    mouth = articulation(speech.phonemes, (np.arange(count) + 0.5) / FPS)
    return mel, mouth, np.asarray(chunk_starts(mel.shape[1], FPS))[:count]


def render_clip(head: heads.Head, speech: Speech, rng: np.random.Generator) -> Clip:
    """The clip in which `head` speaks `speech`, with crops from simulated detections."""
    mel, mouth, starts = speech_features(speech)
    motion = head_motion(len(mouth), rng)
    size = int(rng.choice([192, 256, 320]))
    scale = size / heads.SIZE
    bias = rng.normal(0, 0.035, 4)  # constant error of the simulated detector, as a share of the box's size
    corners = np.array(head.box).reshape(2, 2)
    extent = corners[1] - corners[0]
    faces, places = [], []
    for picture, move in zip(pictures(head, mouth, motion, size), motion, strict=True):
        centre = head.transformed(corners.mean(0), move) * scale
        place = head.transformed(head.lips.centre, move) * scale
        error = (bias + rng.normal(0, 0.006, 4)).reshape(2, 2) * extent
        top_left = centre + (error[0] - 0.5 * extent) * scale
        bottom_right = centre + (error[1] + 0.5 * extent) * scale
        x1, y1 = np.maximum(0, top_left).astype(int)
        x2, y2 = np.minimum(size, bottom_right + (0, PADS[1])).astype(int)
        faces.append(cv2.resize(picture[y1:y2, x1:x2], (SIDE, SIDE)))
        places.append((place - (x1, y1)) * SIDE / (x2 - x1, y2 - y1))
    return Clip(np.stack(faces), mel, mouth, np.array(places, np.float32), starts)


def person(seed: int) -> heads.Head:
    """The head of a seed: drawn, or for some training seeds a variation of Grace Hopper's photo."""
    if seed < FIRST_HELD_OUT_SEED and np.random.default_rng([seed, 30]).random() < PHOTO_SHARE:
        return heads.photo_head(hopper(), heads.HOPPER, seed)
    return heads.drawn_head(seed)


def random_sentence(sentences, rng: np.random.Generator) -> str:
    """One of the sentences."""
    return sentences[rng.integers(len(sentences))]


def training_speech(text: str, rng: np.random.Generator) -> Speech:
    """The text in a voice of training, half of the time in a composed one: 51 voices alone do not cover other ones."""
    return synthesise_varied(text, VOICES, rng, composed_share=0.5)


def training_clip(seed: int) -> Clip:
    """Clip number `seed` of the training data."""
    rng = np.random.default_rng([seed, 31])
    return render_clip(person(seed), training_speech(random_sentence(TRAINING, rng), rng), rng)


def training_sound(seed: int) -> Clip:
    """A clip without pictures, of shuffled words."""
    rng = np.random.default_rng([seed, 33])
    mel, mouth, starts = speech_features(training_speech(shuffled_words(TRAINING, rng), rng))
    return Clip(np.empty((len(mouth), 0, 0, 3), np.uint8), mel, mouth, np.empty((len(mouth), 2), np.float32), starts)


def calibration(clips: int = 6, batch: int = 4) -> list[dict[str, np.ndarray]]:
    """Inputs of the generator from training clips, for NNCF: a batch of frames of each clip."""
    items = []
    for number in range(clips):
        clip = training_clip(number)
        frames = np.linspace(0, len(clip.faces) - 1, batch).astype(int)
        face = np.stack([generator_face(crop) for crop in clip.faces[frames]])
        items.append({"audio": clip.windows(frames), "face": face})
    return items


def held_out_speech(rng: np.random.Generator) -> Speech:
    """A held-out sentence in a held-out voice."""
    return synthesise_varied(random_sentence(HELD_OUT, rng), HELD_OUT_VOICES, rng)


def held_out_clip(seed: int) -> Clip:
    """A clip of a held-out person, sentence and voice."""
    rng = np.random.default_rng([seed, 32])
    return render_clip(person(FIRST_HELD_OUT_SEED + seed), held_out_speech(rng), rng)


def sample_video(path: str | Path, size: tuple[int, int], seconds: float, seed: int = FIRST_HELD_OUT_SEED) -> None:
    """Write an MP4 of a drawn head in the middle of pictures of `size` (width, height); its speech repeats."""
    rng = np.random.default_rng([seed, 34])
    speech = held_out_speech(rng)
    _, mouth, _ = speech_features(speech)
    head = heads.drawn_head(seed)
    width, height = size
    drawn = list(pictures(head, mouth, head_motion(len(mouth), rng), height))
    side = (width - height) // 2
    with TemporaryDirectory() as folder:
        voice = Path(folder) / "voice.wav"
        write_wav(voice, np.resize(speech.samples, round(seconds * SAMPLE_RATE)), SAMPLE_RATE)
        with Writer(path, Fraction(FPS), voice, label=False) as writer:
            for picture in islice(cycle(drawn), round(seconds * FPS)):
                wide = cv2.copyMakeBorder(picture, 0, 0, side, width - height - side, cv2.BORDER_REPLICATE)
                writer.write(cv2.resize(wide, size))


def main() -> None:
    """Write the samples of the notebook and the demo: a speaking head, two portraits, and a voice."""
    samples = paths.notebook_dir(__package__) / "samples"
    samples.mkdir(exist_ok=True)
    sample_video(samples / "face.mp4", (256, 256), seconds=4)
    portraits = {
        "astronaut": heads.closed_smile(heads.framed(astronaut(), heads.ASTRONAUT)),
        "hopper": heads.framed(hopper(), heads.HOPPER),
    }
    for name, portrait in portraits.items():
        cv2.imwrite(str(samples / f"{name}.jpg"), portrait, [cv2.IMWRITE_JPEG_QUALITY, 95])
    rng = np.random.default_rng(SAMPLE_VOICE_SEED)
    write_wav(samples / "voice.wav", held_out_speech(rng).samples, SAMPLE_RATE)


if __name__ == "__main__":
    main()
