"""The thumbnail has the size of the catalogue, and shows the committed measurements."""

from matplotlib.image import imread

from utils import charts, report


def test_the_thumbnail_has_the_size_of_the_catalogue(tmp_path):
    rows = report.load(report.BENCH / "deepseek_serving.json")["speed"]
    charts.throughput_thumbnail(rows, "tokens per second").savefig(tmp_path / "small.png")
    assert imread(tmp_path / "small.png").shape[:2] == (200, 320)
