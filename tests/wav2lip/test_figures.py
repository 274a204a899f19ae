"""The figures show what they are given, and the README's pictures are made by the model."""

import cv2
import numpy as np
import pytest
from PIL import Image

from notebooks.wav2lip import convert, figures
from utils import weights

PICTURE = np.zeros((60, 40, 3), np.uint8)


def test_the_network_figure_names_every_size():
    texts = [text.get_text() for text in figures.network_figure().axes[0].texts]
    assert all(texts.count(f"{side} x {side}") == 2 for side in (1, 3, 6, 12, 24, 48, 96))


def test_the_window_of_sound_is_marked_at_its_time():
    figure = figures.inputs_figure(np.zeros((80, 200)), 40, np.zeros((6, 96, 96)))
    sound, masked, _ = figure.axes
    (window,) = sound.patches
    assert (window.get_x(), window.get_width()) == pytest.approx((0.5, 0.2))
    assert masked.get_title() == "face, channels 0 to 2"


def test_rows_of_pictures_have_their_names_and_colours():
    blue = PICTURE + np.uint8([200, 0, 0])
    (axes,) = figures.strips({"one": [blue, blue]}).axes
    shown = axes.images[0].get_array()
    assert axes.get_ylabel() == "one" and shown.shape == (60, 80, 3) and tuple(shown[0, 0]) == (0, 0, 200)
    assert [axes.get_title() for axes in figures.titled({"a": blue, "b": blue}).axes] == ["a", "b"]


def test_moments_with_closed_lips_are_shaded():
    times = np.arange(20) / 25
    lines = {name: np.linspace(0, scale, 20) for name, scale in (("a", 1), ("b", 2), ("c", 5))}
    curves, mouths = figures.mouth_figure(times, lines, times < 0.1, np.stack([PICTURE] * 20)).axes
    assert len(curves.patches) == 3 and [len(line.get_xdata()) for line in curves.lines] == [20] * 3
    assert all(line.get_ydata().max() == 1 for line in curves.lines)
    assert mouths.images[0].get_array().shape == (60, 400, 3)


def test_the_pictures_of_the_readme_are_results(generator_ir, tmp_path, monkeypatch):
    files = {"wav2lip": generator_ir, "face_detection": weights.fetch("blazeface")}
    monkeypatch.setattr(convert, "prepare", files.get)
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    figures.main()
    with Image.open(tmp_path / "result.webp") as clip:
        assert clip.size == (768, 256) and clip.n_frames == 71
    assert cv2.imread(str(tmp_path / "thumbnail.jpg")).shape == (200, 320, 3)
