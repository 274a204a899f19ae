"""The thumbnail has the size of the catalogue, and shows the committed measurements."""

from matplotlib.image import imread

from notebooks.deepseek_serving import figures
from utils import report


def test_the_thumbnail_has_the_size_of_the_catalogue(tmp_path):
    figures.throughput_thumbnail(report.load(report.BENCH / "deepseek_serving.json")["speed"], tmp_path / "small.png")
    assert imread(tmp_path / "small.png").shape[:2] == (200, 320)
