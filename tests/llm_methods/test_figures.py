"""Figures and tables show what rows hold; the README has the tables of the stored rows."""

from notebooks.llm_methods import figures
from notebooks.llm_methods.pipeline import METHODS, named
from tests.llm_methods.small import row
from utils.paths import ROOT


def test_the_map_has_a_point_for_each_row_and_the_front_as_a_line():
    sizes = {"FP16": (24, 270), "NF4": (30, 86), "MXFP4": (99, 90)}
    rows = [row(name, perplexity=perplexity, model_mb=mb) for name, (perplexity, mb) in sizes.items()]
    size, speed = figures.method_map(rows).axes
    points = sorted(tuple(point) for dots in size.collections for point in dots.get_offsets())
    assert points == [(86, 30), (90, figures.LARGEST), (270, 24)]
    assert list(size.lines[0].get_xdata()) == [86, 270]
    assert speed.get_xlabel() == "tokens per second"


def test_the_map_of_recall_has_a_number_for_each_method_and_length():
    full = row("full attention", recall_1024=8, recall_8000=4, cpu_s_1024=0.5, cpu_s_8000=2.5)
    rows = [full, row("tri-shape", recall_1024=7, recall_8000=0, cpu_s_8000=1.5), row("eviction", error="no")]
    left, right = figures.recall_map(rows).axes
    assert [text.get_text() for text in left.texts] == ["8", "4", "7", "0"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["full attention", "tri-shape"]
    assert [bar.get_width() for bar in right.patches] == [2.5, 1.5]


def test_an_error_stands_in_its_row():
    columns = {"perplexity": "Perplexity", "right": "Right"}
    text = figures.table([row("KV u4", error="RuntimeError: gone")], columns).markdown()
    assert "| KV u4 | RuntimeError: gone |  |" in text


def test_a_method_without_a_measurement_has_its_reason():
    text = figures.measured({"decoding": [row("greedy", kind="decoding", tokens_per_s=50.0)]})
    assert f"| EAGLE-3 | {named('EAGLE-3').why} |" in text
    assert "| beam search | not measured yet |" in text and "| greedy | not measured yet |" not in text


def test_rows_of_another_processor_are_named_below_their_table():
    rows = [row("greedy", kind="decoding", tokens_per_s=50.0)]
    rows.append(row("beam search", kind="decoding", tokens_per_s=9.0, cpu="Slow (family 1)"))
    text = figures.measured({"decoding": rows})
    assert text.endswith("</details>\n\nbeam search: measured on another processor, Slow.")
    assert "All of these were measured on another processor, Slow." in figures.measured({"decoding": rows[1:]})


def test_the_readme_has_the_tables_of_the_stored_rows():
    page = (ROOT / "notebooks" / "llm_methods" / "README.md").read_text(encoding="utf-8")
    assert figures.written(page, figures.stored()) == page, "run python -m notebooks.llm_methods.figures"
    assert page.count("<!-- methods:") == 3


def test_every_method_has_its_call_on_the_page():
    text = figures.calls()
    assert all(" ".join(method.call.split()).replace("|", r"\|") in text for method in METHODS)
