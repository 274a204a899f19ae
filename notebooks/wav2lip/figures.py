"""Figures of the notebook, and the pictures of its README: `python -m notebooks.wav2lip.figures` makes these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from notebooks.wav2lip import convert
from notebooks.wav2lip.pipeline import MEL_RATE, WINDOW, LipSync
from notebooks.wav2lip.pipeline.media import read_frames
from utils.charts import COLOURS, FILL, INK, LINE, PICTURE, TEXT, arrows, box

FOLDER = Path(__file__).parent
SAMPLES = FOLDER / "samples"
DPI = 110


def network_figure() -> Figure:
    """The generator: sound enters at the left, the face from below, and the decoder uses both."""
    figure = Figure(figsize=(7.8, 2.8), layout="constrained")
    axes = figure.subplots()
    sides = [1, 3, 6, 12, 24, 48, 96]
    encoder = [box(axes, place, 0, f"{side} x {side}", PICTURE) for place, side in enumerate(sides)]
    decoder = [box(axes, place, 1.4, f"{side} x {side}", FILL) for place, side in enumerate(sides)]
    sound = box(axes, -1.5, 1.4, "audio encoder\n80 x 16 mel", TEXT)
    face = box(axes, 7.4, 0, "masked face\nand reference", PICTURE)
    drawn = box(axes, 7.4, 1.4, "face with\nnew lips", FILL)
    arrows(axes, [face, *reversed(encoder)])
    arrows(axes, [sound, *decoder, drawn])
    for features, block in zip(encoder, decoder, strict=True):
        arrows(axes, [features, block])
    axes.text(3, -0.5, "face encoder: from the picture to one vector", ha="center", color=INK, fontsize=10)
    axes.text(3, 1.9, "decoder: joins the encoder's features of the same size", ha="center", color=INK, fontsize=10)
    axes.set(xlim=(-2.3, 8.2), ylim=(-0.7, 2.1))
    axes.axis("off")
    return figure


def inputs_figure(mel: np.ndarray, start: int, face: np.ndarray) -> Figure:
    """What the generator gets for one frame: a window of the mel spectrogram [80, T], and `face` [6, 96, 96]."""
    figure = Figure(figsize=(7.4, 2.2), dpi=DPI, layout="constrained")
    sound, masked, reference = figure.subplots(1, 3, width_ratios=(2.4, 1, 1))
    seconds = mel.shape[1] / MEL_RATE
    sound.imshow(mel, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, len(mel)))
    window = (start / MEL_RATE, 0), WINDOW / MEL_RATE, len(mel)
    sound.add_patch(Rectangle(*window, fill=False, edgecolor="white", linewidth=2))
    sound.set_xlabel("time, s", fontsize=9)
    sound.set_ylabel("mel band", fontsize=9)
    sound.set_title("audio: the 16 columns in the frame", fontsize=10, color=INK)
    for axes, channels, title in ((masked, face[:3], "face, channels 0 to 2"), (reference, face[3:], "3 to 5")):
        axes.imshow(channels.transpose(1, 2, 0)[..., ::-1])
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[])
    return figure


def strips(rows: Mapping[str, Sequence[np.ndarray]], inches: float = 1.05) -> Figure:
    """Rows of BGR pictures, of one shape in each row, with their names at the left."""
    columns = max(map(len, rows.values()))
    heights = [pictures[0].shape[0] / pictures[0].shape[1] for pictures in rows.values()]
    figure = Figure(figsize=(columns * inches + 1, sum(heights) * inches), dpi=DPI, layout="constrained")
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, pictures) in zip(grid, rows.items(), strict=True):
        axes.imshow(np.concatenate(list(pictures), 1)[..., ::-1])
        axes.set(xticks=[], yticks=[])
        axes.set_ylabel(name, rotation=0, ha="right", va="center", color=INK, fontsize=9)
        axes.spines[:].set_visible(False)
    return figure


def titled(pictures: Mapping[str, np.ndarray], inches: float = 2.5) -> Figure:
    """BGR pictures in a row, each below its title."""
    figure = Figure(figsize=(len(pictures) * inches, inches + 0.5), dpi=DPI, layout="constrained")
    for axes, (title, picture) in zip(figure.subplots(1, len(pictures)), pictures.items(), strict=True):
        axes.imshow(picture[..., ::-1])
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[])
    return figure


def mouth_figure(times: np.ndarray, lines: Mapping[str, np.ndarray], closed: np.ndarray, mouths: np.ndarray) -> Figure:
    """Curves [n] of a mouth over `times` (s), each scaled to 0..1, above pictures of it.

    closed: whether the lips should be closed at each time, which is shaded. mouths: pictures [n, h, w, 3], BGR.
    """
    figure = Figure(figsize=(7.6, 3.1), dpi=DPI, layout="constrained")
    axes, below = figure.subplots(2, height_ratios=(3, 1))
    step = times[1] - times[0]
    for time in times[closed]:
        axes.axvspan(time - step / 2, time + step / 2, color=LINE, alpha=0.35, linewidth=0)
    for (name, values), colour in zip(lines.items(), (INK, COLOURS[1], COLOURS[0]), strict=True):
        low, high = np.min(values), np.max(values)
        axes.plot(times, (values - low) / (high - low), label=name, color=colour, linewidth=1.6)
    axes.set_xlim(times[0], times[-1])
    axes.set_ylabel("opening (scaled)", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    count = 10
    shown = np.linspace(0, len(times) - 1, count + 1)[:-1] + (len(times) - 1) / count / 2
    below.imshow(np.concatenate(list(mouths[shown.astype(int)]), 1)[..., ::-1], aspect="auto")
    below.set(xticks=[], yticks=[])
    below.set_xlabel("time, s; the mouth at ten moments, below its place on the curves", fontsize=9, color=INK)
    return figure


def frames_of(lip_sync: LipSync, face: str, folder: Path) -> list[np.ndarray]:
    """The frames of a result: a face of the samples with their voice."""
    report = lip_sync(SAMPLES / face, SAMPLES / "voice.wav", folder / "result.mp4")
    return list(read_frames(report.path, report.fps))


def main() -> None:
    """Make result.webp and thumbnail.jpg with the tiny model."""
    lip_sync = LipSync(convert.prepare("wav2lip"), convert.prepare("face_detection"))
    with TemporaryDirectory() as folder:
        faces = "face.mp4", "astronaut.jpg", "hopper.jpg"
        results = [frames_of(lip_sync, face, Path(folder)) for face in faces]
    three = [np.concatenate(frames, 1)[..., ::-1] for frames in zip(*results, strict=True)]  # RGB
    first, *others = [Image.fromarray(np.ascontiguousarray(picture)) for picture in three]
    first.save(FOLDER / "result.webp", save_all=True, append_images=others, duration=40, loop=0, quality=60, method=6)
    narrow = [frames[22][:, 26:231] for frames in results[1:]]  # [256, 205, 3] each
    small = np.concatenate([cv2.resize(picture, (160, 200), interpolation=cv2.INTER_AREA) for picture in narrow], 1)
    cv2.imwrite(str(FOLDER / "thumbnail.jpg"), small, [cv2.IMWRITE_JPEG_QUALITY, 88])


if __name__ == "__main__":
    main()
