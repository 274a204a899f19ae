"""Tables are readable as HTML, as Markdown and as text."""

import pytest

from utils.tables import Table, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("a  b", "a b"),
        (0, "0"),
        (37, "37"),
        (0.8141, "0.814"),
        (24.2238, "24.2"),
        (24.0, "24"),
        (1234.6, "1,235"),
        (1_485_243, "1.49 million"),
        (249_369_848.77, "249 million"),
        (73_020_934e6, "73,020,934 million"),
        (float("inf"), "inf"),
        (0.00035, "0.00035"),
        (0.0000123, "0.0000123"),
        (9.5e-7, "under 0.00001"),
        (-0.0097, "-0.0097"),
        (999.6, "1,000"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert number(value) == text


def test_a_table_in_all_forms():
    table = Table(["Metric", "Value"], [["a | b", "1\n2"], ["<c>"]])
    assert table.markdown() == "| Metric | Value |\n| --- | --- |\n| a \\| b | 1<br>2 |\n| <c> |  |"
    assert repr(table) == "Metric  Value\na | b   1; 2\n<c>"
    page = table._repr_html_()
    assert "&lt;c&gt;" in page and "1<br>2" in page and page.count("<tr>") == 3


def test_a_folded_table_shows_its_title():
    table = Table(["Metric"], [["a"]], folded="All timings")
    assert repr(table) == "All timings: 1 rows"
    assert table._repr_html_().startswith("<details><summary>All timings</summary><table>")
    assert table.markdown().startswith("<details>\n<summary>All timings</summary>\n\n| Metric |")
