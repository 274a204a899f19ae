"""The figures show what they are given."""

from notebooks.new_case import figures
from tests.new_case import small


def test_the_network_has_a_box_for_each_layer():
    texts = [text.get_text() for text in figures.network_figure().axes[0].texts]
    assert [text for text in texts if text] == list(figures.LAYERS)


def test_each_picture_has_its_title():
    figure = figures.digits_figure(small.pictures(2), ["3", "5"])
    assert [axes.get_title() for axes in figure.axes] == ["3", "5"]
