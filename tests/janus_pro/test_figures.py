"""The pictures of the lesson hold what they are to show."""

import io

import numpy as np
from PIL import Image

from notebooks.janus_pro import figures


def painted(figure) -> np.ndarray:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=60)
    return np.asarray(Image.open(file).convert("RGB"))


def test_each_token_has_its_colour_and_what_is_missing_is_grey():
    grid = np.asarray(figures.token_grid([0, 1, 2, 1, 511], 3, 512)).reshape(9, 3)
    assert len({tuple(pixel) for pixel in grid[:3]}) == 3 and (grid[1] == grid[3]).all()
    assert (grid[5:] == figures.MISSING_GREY).all() and (grid[4] != figures.MISSING_GREY).any()
    colours = np.asarray(figures.token_grid(range(400), 20, 400)).reshape(400, 3)
    assert len({tuple(pixel) for pixel in colours}) > 390


def test_the_network_is_drawn_with_its_parts():
    figure = figures.network_figure()
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(part in words for part in ("SigLIP", "aligner", "text head", "image head", "VQ decoder"))
    assert len(np.unique(painted(figure).reshape(-1, 3), axis=0)) > 10


def test_pictures_stand_under_their_words():
    red = Image.new("RGB", (8, 8), "red")
    figure = figures.pictures_with_words([("a red square", red), ("another", red), ("third", red)], columns=2)
    assert [axes.get_title() for axes in figure.axes] == ["a red square", "another", "third", ""]
    assert (painted(figure) == (255, 0, 0)).all(-1).sum() > 500


def test_a_framed_picture_is_enlarged_without_blur():
    picture = Image.new("RGB", (3, 3), "red")
    picture.putpixel((1, 1), (0, 0, 255))
    large = np.asarray(figures.framed(picture, 7))
    assert large.shape == (11, 11, 3) and (large[0] == figures.FRAME_GREY).all()
    assert (large[1:-1, 1:-1][::3, ::3] == np.asarray(picture)).all()
    assert len(np.unique(large.reshape(-1, 3), axis=0)) == 3


def test_every_token_stands_on_its_place_of_the_picture():
    picture = Image.new("RGB", (16, 16), "white")
    figure = figures.tokens_figure(picture, [7, 8, 9, 10], picture)
    middle = figure.axes[1]
    assert [text.get_text() for text in middle.texts] == ["7", "8", "9", "10"]
    assert middle.texts[1].get_position() == (11.5, 3.5)


def test_the_title_of_the_chart_counts_correct_drawings():
    row = {"metric": "drawings, all kinds", "threshold": 0.5, "better": "higher", "of": 8}
    rows = [row | {"precision": "FP16", "value": 0.75}, row | {"precision": "INT4", "value": 0.5}]
    title = figures.drawings_chart(rows).axes[0].get_title(loc="left")
    assert title == "Correct drawings of 8: 6 at FP16, 4 at INT4"
