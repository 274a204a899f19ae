"""Do the lips say the sound? Held-out people are made to say what somebody else said, and their pixels are measured.

A trial is a video of a person that training never saw, who speaks, and the sound of another sentence in a voice that
training never heard. What the mouth should do is known; what it does is read from the result by the face mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from notebooks.wav2lip import heads, metrics
from notebooks.wav2lip.clips import FPS, UNSEEN, astronaut, held_out_speech, listen, pictures, sway
from notebooks.wav2lip.detection import FaceDetector
from notebooks.wav2lip.pipeline import PADS, WINDOW, cut, generator_face, melspectrogram, padded, paste, smoothed
from notebooks.wav2lip.speech import Speech, phone_classes

Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]  # audio [B, 1, 80, 16], face [B, 6, 96, 96] -> [B, 3, 96, 96]
BATCH = 16
LATE = 5  # frames by which the control's sound is late


@dataclass(frozen=True)
class Trial:
    """n frames: the person's own video [n, 256, 256, 3] with the boxes of the face [n, 4], the other's speech, what
    the mouth should do [n, 3], the class of the phone said, and the person truly saying it [n, 256, 256, 3]."""

    pictures: np.ndarray
    boxes: list[tuple[int, int, int, int]]
    speech: Speech
    mouth: np.ndarray
    classes: list[str]
    truth: np.ndarray

    def crops(self, frames: np.ndarray) -> np.ndarray:
        """The faces [n, 96, 96, 3] in frames of this trial."""
        return np.stack([cut(frame, box) for frame, box in zip(frames, self.boxes, strict=True)])


def trial(seed: int, detector: FaceDetector, photo: bool = False) -> Trial:
    """Trial number `seed`; with `photo` the person is the astronaut of scikit-image's portrait."""
    rng = np.random.default_rng([seed, 40])
    person = heads.photo_head(astronaut(), heads.ASTRONAUT) if photo else heads.drawn_head(UNSEEN + seed)
    own, speech = held_out_speech(rng), held_out_speech(rng)
    _, before, _ = listen(own)
    _, mouth, _ = listen(speech)
    count = min(len(before), len(mouth))
    motion = sway(count, rng)
    video = np.stack([*pictures(person, before[:count], motion)])
    boxed = [(None, padded(detector(picture)[0], PADS, picture)) for picture in video]
    classes = phone_classes(speech.phones, (np.arange(count) + 0.5) / FPS)
    truth = np.stack([*pictures(person, mouth[:count], motion)])
    return Trial(video, [box for _, box in smoothed(boxed)], speech, mouth[:count], classes, truth)


def redraw(trial: Trial, draw: Draw, samples: np.ndarray | None = None) -> np.ndarray:
    """The person's video [n, 256, 256, 3], its lips redrawn for the trial's sound, or for other samples."""
    mel = melspectrogram(trial.speech.samples if samples is None else samples)
    starts = [min(int(i * 80 / FPS), mel.shape[1] - WINDOW) for i in range(len(trial.pictures))]
    audio = np.stack([mel[None, :, start : start + WINDOW] for start in starts])
    face = np.stack([generator_face(crop) for crop in trial.crops(trial.pictures)])
    drawn = np.concatenate([draw(audio[i : i + BATCH], face[i : i + BATCH]) for i in range(0, len(face), BATCH)])
    faces = (drawn * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return np.stack([paste(*item) for item in zip(trial.pictures, faces, trial.boxes, strict=True)])


class Judge:
    """Measures results of some trials by the face mesh and, where it is given, the lip-sync expert."""

    def __init__(self, trials: Sequence[Trial], mesh: metrics.FaceMesh, expert: Callable | None = None):
        self.trials, self.mesh, self.expert = trials, mesh, expert
        self._true = [self._mouth(trial, trial.truth) for trial in trials]

    def _mouth(self, trial: Trial, frames: np.ndarray) -> metrics.Mouth:
        return metrics.mouth(self.mesh(frames, np.array(trial.boxes)))

    def ruler(self) -> float:
        """The correlation that a perfect result has: the mesh reads the true pictures."""
        return self._follows([opening for opening, _ in self._true])

    def _follows(self, openings: Sequence[np.ndarray]) -> float:
        return metrics.correlation(openings, [trial.mouth[:, 0] for trial in self.trials])

    def loudness(self) -> float:
        """The correlation of a mouth that opens with loudness alone, read without any error."""
        times = (np.arange(len(trial.mouth)) + 0.5 for trial in self.trials)
        curves = [metrics.loudness(t.speech.samples, x / FPS) for t, x in zip(self.trials, times, strict=True)]
        return self._follows(curves)

    def correlation(self, results: Sequence[np.ndarray]) -> float:
        """How the opening of the mouth follows what it should, as a mean over trials. results: frames of each."""
        return self._follows([self._mouth(t, frames)[0] for t, frames in zip(self.trials, results, strict=True)])

    def measure(self, results: Sequence[np.ndarray]) -> dict[str, float]:
        """All metrics of one set of results: frames [n, 256, 256, 3] of each trial."""
        mouths = [self._mouth(trial, frames) for trial, frames in zip(self.trials, results, strict=True)]
        classes = [name for trial in self.trials for name in trial.classes]
        shapes, truth = (tuple(np.concatenate(x) for x in zip(*of, strict=True)) for of in (mouths, self._true))
        pairs = [(t.crops(frames), t.crops(t.truth)) for t, frames in zip(self.trials, results, strict=True)]
        psnr, ssim = np.mean([metrics.picture_quality(*pair) for pair in pairs], 0)
        found = {
            "mouth_correlation": self._follows([opening for opening, _ in mouths]),
            "mouth_shape": metrics.shape_accuracy(shapes, truth, classes),
            "lower_face_psnr": float(psnr),
            "lower_face_ssim": float(ssim),
        }
        if self.expert:
            sync = [
                metrics.sync_confidence(self.expert, faces, melspectrogram(t.speech.samples))
                for t, (faces, _) in zip(self.trials, pairs, strict=True)
            ]
            found["sync_offset"] = float(np.mean([abs(offset) for offset, _ in sync]))
            found["sync_confidence"] = float(np.mean([confidence for _, confidence in sync]))
        return found


def silenced(trial: Trial) -> np.ndarray:
    """A control: no sound at all, as long as the trial's."""
    return np.zeros_like(trial.speech.samples)


def jumbled(trial: Trial) -> np.ndarray:
    """A control: the trial's sound in another order."""
    return metrics.shuffled(trial.speech.samples, np.random.default_rng(0))


def late(trial: Trial) -> np.ndarray:
    """A control: the trial's sound five frames late."""
    return metrics.delayed(trial.speech.samples, LATE)
