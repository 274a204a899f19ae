"""The figures show what they are given."""

from matplotlib.image import imread

from notebooks.ollama_openvino import figures
from utils import charts


def test_the_way_names_each_step():
    texts = {text.get_text() for text in figures.way_picture().axes[0].texts}
    assert {*figures.STEPS, *figures.DISK} <= texts


def test_memory_is_drawn_with_its_events():
    axes = figures.memory_picture([(0, 100), (1, 300), (2, 120)], {"load": 0.5, "unload": 1.5}).axes[0]
    assert [text.get_text().strip() for text in axes.texts] == ["load", "unload"]
    assert axes.lines[0].get_ydata().tolist() == [100, 300, 120]


def test_the_thumbnail_has_the_size_of_the_catalogue(tmp_path):
    row = {"runtime": "openvino", "precision": "INT4", "workload": "1 client, 32 tokens each", "throughput": 100}
    rows = [row, row | {"workload": "4 clients, 32 tokens each"}]
    charts.throughput_thumbnail(rows, "Ollama clients, tokens per second").savefig(tmp_path / "small.png")
    assert imread(tmp_path / "small.png").shape[:2] == (200, 320)
