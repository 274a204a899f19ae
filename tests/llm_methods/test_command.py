"""The command line: a recommendation from rows, the list, and errors without a traceback."""

import pytest

from notebooks.llm_methods import __main__ as command
from notebooks.llm_methods.measuring.store import Rows
from tests.llm_methods.small import row


@pytest.fixture
def rows(tmp_path, monkeypatch):
    rows = Rows(tmp_path / "rows.json")
    for name, memory, perplexity in (("FP16", 900, 24.2), ("NF4", 300, 30.1)):
        fields = row(name, running_mb=memory, perplexity=perplexity)
        rows.add("weights", name, fields | {"call": f"the call of {name}"})
    monkeypatch.setattr(command, "place", lambda model: tmp_path / "rows.json")
    return rows


def test_it_recommends_within_the_memory(rows, capsys):
    assert command.main(["--ram", "4", "--goal", "quality"]) == 0
    assert "Take FP16:\nthe call of FP16" in capsys.readouterr().out
    assert command.main(["--ram", "0.5"]) == 0
    assert "Take NF4:\nthe call of NF4" in capsys.readouterr().out


def test_a_limit_that_nothing_keeps_is_one_line(rows, capsys):
    assert command.main(["--ram", "0.1"]) == 1
    assert capsys.readouterr().err == "No method keeps running_mb within 100; the least is 300. Raise the limit.\n"


def test_a_model_without_rows_says_how_to_measure_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "place", lambda model: tmp_path / "none.json")
    assert command.main([]) == 1
    assert "python -m notebooks.llm_methods.measuring" in capsys.readouterr().err


def test_the_list_has_every_method(capsys):
    assert command.main(["--list"]) == 0
    assert "Mode.NF4, group_size=64" in capsys.readouterr().out


def test_the_stored_rows_give_a_recommendation(capsys):
    assert command.main(["--ram", "4", "--goal", "quality"]) == 0
    assert "Take " in capsys.readouterr().out
