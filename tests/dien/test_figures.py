"""The thumbnail has the size of the catalogue and titles that fit."""

from matplotlib.image import imread

from notebooks.dien import figures
from notebooks.dien.figures import CARTOONS


def test_the_thumbnail_has_the_size_of_the_catalogue(tmp_path):
    figures.ranking_thumbnail(CARTOONS, CARTOONS[::-1], tmp_path / "small.png")
    assert imread(tmp_path / "small.png").shape[:2] == (200, 320)


def test_titles_are_cut():
    assert [figures._short(title) for title in (CARTOONS[0], CARTOONS[2])] == ["Lion King", "Beauty and the…"]
