"""The stored examination as a table."""

import json

from notebooks.rag_serving.measuring import examination
from utils import report


def test_the_table_shows_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EXAMINATIONS", tmp_path)
    assert "make bench CASE=rag_serving" in repr(examination.table())
    row = {"better": "higher", "precision": "INT8", "reference": None, "threshold": None}
    values = {"recall@1": 0.4, "recall@5": 0.6, "recall@10": 0.7, "MRR": 0.512}
    rows = [row | {"metric": f"{metric}, 9 questions, words only", "value": value} for metric, value in values.items()]
    rows.append(row | {"metric": "recall@1, 9 questions, vectors only", "value": 0.1, "precision": "FP32"})
    stored = report.save("rag_serving", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path,
                         date="2026-11-25")  # fmt: skip
    assert json.loads(stored.read_text(encoding="utf-8"))["quality"][0]["value"] == 0.4
    table = examination.table()
    assert table.rows == [["9 questions, words only", "0.4", "0.6", "0.7", "0.512"]] and "2026-11-25" in table.folded
