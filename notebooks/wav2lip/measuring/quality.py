"""Measures whether the lips follow the sound, on held-out people who speak the sound of another speaker.

A trial combines the video of a held-out person who speaks, and another held-out sentence in a held-out voice. The true
shape of the mouth is known. The face mesh measures the mouth in the result. The notebook measures NOTEBOOK_TRIALS.
`python -m notebooks.wav2lip.measuring.quality` measures all TRIALS at every precision, and writes
results/examination/wav2lip.json.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import nn

from notebooks.wav2lip import convert
from notebooks.wav2lip.data import heads
from notebooks.wav2lip.data.clips import (
    FIRST_HELD_OUT_SEED,
    FPS,
    astronaut,
    calibration,
    head_motion,
    held_out_speech,
    pictures,
    speech_features,
)
from notebooks.wav2lip.data.speech import LEAD_S, phoneme_classes
from notebooks.wav2lip.measuring import metrics
from notebooks.wav2lip.pipeline import (
    MEL_RATE,
    PADS,
    WINDOW,
    cut,
    generator_face,
    melspectrogram,
    padded,
    paste_rectangle,
    smoothed,
)
from notebooks.wav2lip.pipeline.detection import FaceDetector
from utils import compare, report, select, weights
from utils.speech.espeak import Speech

Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]  # audio [B, 1, 80, 16], face [B, 6, 96, 96] -> [B, 3, 96, 96]
TRIALS = range(200, 206)  # seeds
PHOTO_TRIAL = 205  # whose person is the astronaut
NOTEBOOK_TRIALS = 200, PHOTO_TRIAL
BATCH_SIZE = 16
MARGINS = {  # how far a metric may lie below that of PyTorch
    "mouth correlation": 0.02,
    "mouth shape": 0.04,
    "lower face, PSNR (dB)": 0.3,
    "lower face, SSIM": 0.01,
    "sync confidence": 0.02,
}
GOALS = {"mouth correlation": 0.85}  # true pictures, measured alike, reach 0.96
DELAY = 5  # frames by which the sound of a control is late


@dataclass(frozen=True)
class Trial:
    """n frames of a person, and the speech of another one that the person's lips should follow."""

    pictures: np.ndarray  # [n, 256, 256, 3], the person's own video
    boxes: list[tuple[int, int, int, int]]  # of the face in each frame
    speech: Speech
    mouth: np.ndarray  # [n, 3], the true mouth for `speech`
    classes: list[str]  # of the phoneme at each frame
    truth: np.ndarray  # [n, 256, 256, 3], the person with the true mouth

    def crops(self, frames: np.ndarray) -> np.ndarray:
        """The faces [n, 96, 96, 3] in frames of this trial."""
        return np.stack([cut(frame, box) for frame, box in zip(frames, self.boxes, strict=True)])


def trial(seed: int, detector: FaceDetector, photo: bool = False) -> Trial:
    """Trial number `seed`; with `photo` the person is the astronaut of scikit-image's portrait."""
    rng = np.random.default_rng([seed, 40])
    person = heads.photo_head(astronaut(), heads.ASTRONAUT) if photo else heads.drawn_head(FIRST_HELD_OUT_SEED + seed)
    own, speech = two_sentences(rng)
    _, own_mouth, _ = speech_features(own)
    _, mouth, _ = speech_features(speech)
    count = min(len(own_mouth), len(mouth))
    motion = head_motion(count, rng)
    video = np.stack([*pictures(person, own_mouth[:count], motion)])
    boxed = [(None, padded(detector(picture)[0], PADS, picture)) for picture in video]
    classes = phoneme_classes(speech.phonemes, (np.arange(count) + 0.5) / FPS)
    truth = np.stack([*pictures(person, mouth[:count], motion)])
    return Trial(video, [box for _, box in smoothed(boxed)], speech, mouth[:count], classes, truth)


def two_sentences(rng: np.random.Generator) -> tuple[Speech, Speech]:
    """What the person says, and another held-out sentence to redraw the lips for."""
    own = speech = held_out_speech(rng)
    while speech.text == own.text:
        speech = held_out_speech(rng)
    return own, speech


def openvino_generator(ir: Path, arithmetic: str = "f32", device: str = "CPU") -> Draw:
    """The generator by OpenVINO; arithmetic: "f32" or "bf16"."""
    generator = ov.Core().compile_model(ir, device, {"INFERENCE_PRECISION_HINT": arithmetic})
    return lambda audio, face: generator([audio, face])[0]


def torch_generator(network: nn.Module) -> Draw:
    """The generator by PyTorch."""

    def draw(audio: np.ndarray, face: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(audio), torch.from_numpy(face)).numpy()

    return draw


def redraw(trial: Trial, draw: Draw, samples: np.ndarray | None = None) -> np.ndarray:
    """The person's video [n, 256, 256, 3] with lips redrawn for the trial's sound, or for other samples.

    The whole face is pasted, as the authors do, so that the numbers are those of the generator alone.
    """
    mel = melspectrogram(trial.speech.samples if samples is None else samples)
    starts = [min(int(i * MEL_RATE / FPS), mel.shape[1] - WINDOW) for i in range(len(trial.pictures))]
    audio = np.stack([mel[None, :, start : start + WINDOW] for start in starts])  # [n, 1, 80, 16]
    face = np.stack([generator_face(crop) for crop in trial.crops(trial.pictures)])  # [n, 6, 96, 96]
    batches = [slice(start, start + BATCH_SIZE) for start in range(0, len(face), BATCH_SIZE)]
    drawn = np.concatenate([draw(audio[batch], face[batch]) for batch in batches])  # [n, 3, 96, 96]
    faces = (drawn * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return np.stack([paste_rectangle(*item) for item in zip(trial.pictures, faces, trial.boxes, strict=True)])


class Evaluator:
    """Measures results of some trials with the face mesh and the lip-sync expert (see `metrics.sync_confidence`)."""

    def __init__(self, trials: Sequence[Trial], mesh: metrics.FaceMesh, expert: Callable):
        self.trials = trials
        self.mesh = mesh
        self.expert = expert
        self._true = [self._mouth(trial, trial.truth) for trial in trials]

    def _mouth(self, trial: Trial, frames: np.ndarray) -> metrics.Mouth:
        return metrics.mouth(self.mesh(frames, np.array(trial.boxes)))

    def upper_bound(self) -> float:
        """The mouth correlation of a perfect result: that of the true pictures, measured by the mesh."""
        return self._correlation([opening for opening, _ in self._true])

    def _correlation(self, openings: Sequence[np.ndarray]) -> float:
        return metrics.correlation(openings, [trial.mouth[:, 0] for trial in self.trials])

    def loudness(self) -> float:
        """The mouth correlation of a baseline that opens with loudness alone, without errors of measurement."""
        curves = []
        for trial in self.trials:
            times = (np.arange(len(trial.mouth)) + 0.5) / FPS + LEAD_S
            curves.append(metrics.loudness(trial.speech.samples, times))
        return self._correlation(curves)

    def measure(self, results: Sequence[np.ndarray]) -> dict[str, float]:
        """All metrics of one set of results: frames [n, 256, 256, 3] of each trial."""
        mouths = [self._mouth(trial, frames) for trial, frames in zip(self.trials, results, strict=True)]
        classes = [name for trial in self.trials for name in trial.classes]
        shapes, true_shapes = _joined(mouths), _joined(self._true)
        pictures, sync = [], []
        for trial, frames in zip(self.trials, results, strict=True):
            faces = trial.crops(frames)
            pictures.append(metrics.picture_quality(faces, trial.crops(trial.truth)))
            sync.append(metrics.sync_confidence(self.expert, faces, melspectrogram(trial.speech.samples)))
        psnr, ssim = np.mean(pictures, 0)
        return {
            "mouth correlation": self._correlation([opening for opening, _ in mouths]),
            "mouth shape": metrics.shape_accuracy(shapes, true_shapes, classes),
            "lower face, PSNR (dB)": float(psnr),
            "lower face, SSIM": float(ssim),
            "sync confidence": float(np.mean([confidence for _, confidence in sync])),
            "sync offset (frames)": float(np.mean([abs(offset) for offset, _ in sync])),
        }


def prepared_evaluator(seeds: Iterable[int], model: str = "tiny", device: str = "CPU") -> Evaluator:
    """An evaluator of the trials with these seeds, with MediaPipe's face mesh and the lip-sync expert of a model."""
    detector = FaceDetector(convert.prepare("face_detection", "tiny"), device)
    trials = [trial(seed, detector, photo=seed == PHOTO_TRIAL) for seed in seeds]
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    expert = ov.Core().compile_model(convert.prepare("syncnet", model), device, settings)
    mesh = metrics.FaceMesh(weights.fetch("face_mesh"), device)
    return Evaluator(trials, mesh, lambda *inputs: expert(inputs).values())


def _joined(mouths: Sequence[metrics.Mouth]) -> metrics.Mouth:
    """Openings and widths of all trials, one after another."""
    return np.concatenate([opening for opening, _ in mouths]), np.concatenate([width for _, width in mouths])


def silent_samples(trial: Trial) -> np.ndarray:
    """Silence of the trial's length."""
    return np.zeros_like(trial.speech.samples)


def shuffled_samples(trial: Trial) -> np.ndarray:
    """Pieces of the trial's sound in another order."""
    return metrics.shuffled(trial.speech.samples, np.random.default_rng(0))


def late_samples(trial: Trial) -> np.ndarray:
    """The trial's sound five frames late."""
    return metrics.delayed(trial.speech.samples, DELAY)


SILENCE, SHUFFLED_SOUND, LATE_SOUND = "silence", "its sound in another order", "its sound five frames late"
UNCHANGED_VIDEO = "the unchanged video"
CONTROLS: dict[str, Callable[[Trial, Draw], np.ndarray]] = {  # frames of negative controls
    SILENCE: lambda trial, draw: redraw(trial, draw, silent_samples(trial)),
    SHUFFLED_SOUND: lambda trial, draw: redraw(trial, draw, shuffled_samples(trial)),
    LATE_SOUND: lambda trial, draw: redraw(trial, draw, late_samples(trial)),
    UNCHANGED_VIDEO: lambda trial, draw: trial.pictures,
}


def table(
    evaluator: Evaluator, draws: dict[str, Draw], reference: Draw, controls: Collection[str] = tuple(CONTROLS)
) -> list[dict]:
    """Quality rows of the drawing functions by precision, compared with the reference, and of some of CONTROLS.

    The threshold of a metric lies its margin below the reference.
    """
    expected = evaluator.measure([redraw(trial, reference) for trial in evaluator.trials])
    measured = {
        precision: evaluator.measure([redraw(trial, draw) for trial in evaluator.trials])
        for precision, draw in draws.items()
    }
    failing = {
        name: evaluator.measure([CONTROLS[name](trial, reference) for trial in evaluator.trials]) for name in controls
    }
    rows = []
    for metric, margin in MARGINS.items():
        threshold = expected[metric] - margin
        options = {"better": "higher", "goal": GOALS.get(metric)}
        for precision, values in measured.items():
            rows.append(compare.quality(metric, precision, values[metric], expected[metric], threshold, **options))
        for name, values in failing.items():
            # sync confidence searches for the best offset, so sound that is only late is no control of it
            if (metric, name) != ("sync confidence", LATE_SOUND):
                rows.append(compare.control(metric, name, values[metric], threshold, "higher"))
        if metric == "mouth correlation":
            name = "a mouth that follows loudness alone"
            rows.append(compare.control(metric, name, evaluator.loudness(), threshold, "higher"))
            name = f"{metric}: perfect pictures, read alike"
            rows.append(compare.quality(name, "-", evaluator.upper_bound(), None, None, "higher"))
    offset = "sync offset (frames)"
    for precision, values in measured.items():
        rows.append(compare.quality(offset, precision, values[offset], expected[offset], None, "lower"))
    if LATE_SOUND in failing:
        delayed = failing[LATE_SOUND][offset]
        rows.append(compare.quality(f"{offset}, {LATE_SOUND}", "FP32", delayed, DELAY, None, "lower"))
    return rows


def main() -> None:
    """Measure all trials at every precision, and write the rows to results/examination."""
    model = select.model(list(convert.CHECKPOINTS["wav2lip"])).value
    fp32 = convert.prepare("wav2lip", model)
    int8 = convert.prepare("wav2lip", model, "INT8", calibration())
    draws = {
        "FP32": openvino_generator(fp32),
        "BF16": openvino_generator(fp32, "bf16"),
        "INT8": openvino_generator(int8, "bf16"),  # as it runs where the processor has BF16
    }
    reference = torch_generator(convert.load("wav2lip", model))
    rows = table(prepared_evaluator(TRIALS, model), draws, reference)
    report.save_examination("wav2lip", model, rows)


if __name__ == "__main__":
    main()
