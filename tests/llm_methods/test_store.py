"""Rows are written one by one, so that a run goes on where it was stopped."""

import json

import pytest

from notebooks.llm_methods.measuring.store import Rows, place


def test_a_row_is_in_the_file_as_soon_as_it_is_added(tmp_path):
    rows = Rows(tmp_path / "rows.json")
    rows.add("weights", "NF4", {"perplexity": 30.1, "error": "once"})
    rows.add("weights", "NF4", {"tokens_per_s": 9.0, "error": None})
    rows.add("cache", "KV u8", {"perplexity": 28.0})
    again = Rows(tmp_path / "rows.json")
    assert again.get("weights", "NF4") == {"kind": "weights", "name": "NF4", "perplexity": 30.1, "tokens_per_s": 9.0}
    assert [row["name"] for row in again.of("cache")] == ["KV u8"]
    stored = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert stored["date"] and stored["cpu"] and stored["openvino"]


def test_a_row_of_another_processor_names_it(tmp_path, monkeypatch):
    rows = Rows(tmp_path / "rows.json")
    rows.add("weights", "NF4", {"perplexity": 30.1})
    first = dict(rows.about)
    monkeypatch.setattr("utils.bench.machine", lambda: {"cpu": "Slow (family 1)", "cores": 1})
    rows.add("decoding", "greedy", {"tokens_per_s": 9.0})
    assert rows.get("decoding", "greedy")["cpu"] == "Slow (family 1)" and "cpu" not in rows.get("weights", "NF4")
    assert Rows(tmp_path / "rows.json").about == first
    monkeypatch.undo()
    rows.add("decoding", "greedy", {"tokens_per_s": 20.0})
    assert "cpu" not in rows.get("decoding", "greedy")


def test_what_was_not_measured_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="NF4 was not measured. Run `make bench"):
        Rows(tmp_path / "rows.json").get("weights", "NF4")


def test_rows_of_a_readers_own_model_lie_among_the_models(monkeypatch, tmp_path):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))
    monkeypatch.delenv("CHECKPOINT", raising=False)
    assert place().parts[-3:] == ("results", "bench", "llm_methods-rows.json")
    assert place("released") == tmp_path / "llm_methods" / "released.json"
    monkeypatch.setenv("CHECKPOINT", "/models/mine.gguf")
    assert place() == tmp_path / "llm_methods" / "mine.json"
