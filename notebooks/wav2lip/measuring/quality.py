"""Do the lips say the sound? Held-out people are made to say what somebody else said, and their pixels are measured.

A trial is a video of a person that training never saw, who speaks, and the sound of another sentence in a voice that
training never heard. What the mouth should do is known; what it does is read from the result by the face mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from notebooks.wav2lip.data import heads
from notebooks.wav2lip.data.clips import FPS, UNSEEN, astronaut, held_out_speech, listen, pictures, sway, training_clip
from notebooks.wav2lip.data.speech import LEAD, Speech, phone_classes
from notebooks.wav2lip.measuring import metrics
from notebooks.wav2lip.pipeline import PADS, WINDOW, cut, generator_face, melspectrogram, padded, paste, smoothed
from notebooks.wav2lip.pipeline.detection import FaceDetector
from utils import compare

Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]  # audio [B, 1, 80, 16], face [B, 6, 96, 96] -> [B, 3, 96, 96]
BATCH = 16
MARGINS = {  # how far below PyTorch a metric may be
    "mouth correlation": 0.02,
    "mouth shape": 0.04,
    "lower face, PSNR (dB)": 0.3,
    "lower face, SSIM": 0.01,
    "sync confidence": 0.02,
}
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
    """Measures results of some trials by the face mesh and the lip-sync expert (see `metrics.sync_confidence`)."""

    def __init__(self, trials: Sequence[Trial], mesh: metrics.FaceMesh, expert: Callable):
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
        times = [(np.arange(len(trial.mouth)) + 0.5) / FPS + LEAD for trial in self.trials]
        curves = [metrics.loudness(t.speech.samples, at) for t, at in zip(self.trials, times, strict=True)]
        return self._follows(curves)

    def measure(self, results: Sequence[np.ndarray]) -> dict[str, float]:
        """All metrics of one set of results: frames [n, 256, 256, 3] of each trial."""
        mouths = [self._mouth(trial, frames) for trial, frames in zip(self.trials, results, strict=True)]
        classes = [name for trial in self.trials for name in trial.classes]
        shapes, truth = (tuple(np.concatenate(x) for x in zip(*of, strict=True)) for of in (mouths, self._true))
        pairs = [(t.crops(frames), t.crops(t.truth)) for t, frames in zip(self.trials, results, strict=True)]
        psnr, ssim = np.mean([metrics.picture_quality(*pair) for pair in pairs], 0)
        sync = [
            metrics.sync_confidence(self.expert, faces, melspectrogram(trial.speech.samples))
            for trial, (faces, _) in zip(self.trials, pairs, strict=True)
        ]
        return {
            "mouth correlation": self._follows([opening for opening, _ in mouths]),
            "mouth shape": metrics.shape_accuracy(shapes, truth, classes),
            "lower face, PSNR (dB)": float(psnr),
            "lower face, SSIM": float(ssim),
            "sync confidence": float(np.mean([confidence for _, confidence in sync])),
            "sync offset (frames)": float(np.mean([abs(offset) for offset, _ in sync])),
        }


def calibration(clips: int = 6, batch: int = 4) -> list[dict[str, np.ndarray]]:
    """Inputs of the generator from training clips, for NNCF: a batch of frames of each clip."""
    items = []
    for number in range(clips):
        clip = training_clip(number)
        frames = np.linspace(0, len(clip.faces) - 1, batch).astype(int)
        face = np.stack([generator_face(crop) for crop in clip.faces[frames]])
        items.append({"audio": clip.windows(frames), "face": face})
    return items


def silenced(trial: Trial) -> np.ndarray:
    """A control: no sound at all, as long as the trial's."""
    return np.zeros_like(trial.speech.samples)


def jumbled(trial: Trial) -> np.ndarray:
    """A control: the trial's sound in another order."""
    return metrics.shuffled(trial.speech.samples, np.random.default_rng(0))


def late(trial: Trial) -> np.ndarray:
    """A control: the trial's sound five frames late."""
    return metrics.delayed(trial.speech.samples, LATE)


LATE_SOUND = "its sound five frames late"
CONTROLS = {"silence": silenced, "its sound in another order": jumbled, LATE_SOUND: late}


def table(judge: Judge, draws: dict[str, Draw], reference: Draw) -> list[dict]:
    """Quality rows of the drawing functions by precision, with the unquantised reference, and of all controls.

    A metric's threshold lies its margin below the reference.
    """

    def results(draw: Draw, sound: Callable | None = None) -> list[np.ndarray]:
        return [redraw(trial, draw, sound and sound(trial)) for trial in judge.trials]

    wanted = judge.measure(results(reference))
    goals = {metric: wanted[metric] - margin for metric, margin in MARGINS.items()}
    found = {name: judge.measure(results(draw)) for name, draw in draws.items()}
    losers = {name: judge.measure(results(reference, sound)) for name, sound in CONTROLS.items()}
    losers["the unchanged video"] = judge.measure([trial.pictures for trial in judge.trials])
    rows = []
    for metric, goal in goals.items():
        rows += [compare.quality(metric, name, x[metric], wanted[metric], goal, "higher") for name, x in found.items()]
        # sync confidence looks for the best offset: sound that is only late is no control of it
        must_lose = {name: x for name, x in losers.items() if (metric, name) != ("sync confidence", LATE_SOUND)}
        rows += [compare.control(metric, name, x[metric], goal, "higher") for name, x in must_lose.items()]
        if metric == "mouth correlation":
            rows.append(
                compare.control(metric, "a mouth that follows loudness alone", judge.loudness(), goal, "higher")
            )
            rows.append(
                compare.quality(f"{metric}: perfect pictures, read alike", "-", judge.ruler(), None, None, "higher")
            )
    offset = "sync offset (frames)"
    rows += [compare.quality(offset, name, x[offset], wanted[offset], None, "lower") for name, x in found.items()]
    shifted = losers[LATE_SOUND][offset]
    return [*rows, compare.quality(f"{offset}, {LATE_SOUND}", "FP32", shifted, LATE, None, "lower")]
