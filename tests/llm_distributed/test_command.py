"""The command line: an answer on the output, one message for bad input."""

from pathlib import Path

import pytest

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.__main__ import main


def test_two_ranks_answer_a_question(capsys):
    assert main(["run", "What is the capital of France?", "--ranks", "2", "--tokens", "16"]) == 0
    captured = capsys.readouterr()
    assert "Paris" in captured.out
    assert [line.partition(":")[0] for line in captured.err.splitlines()[-2:]] == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    ("folders", "message"),
    [(["absent"], "absent holds no share of a model"), (None, "10 ranks cannot share 9 attention heads")],
)
def test_bad_input_is_a_message(folders, message, capsys, monkeypatch):
    if folders:
        monkeypatch.setattr(convert, "prepare", lambda *names: [Path(name) for name in folders])
    assert main(["run", "Hello", "--ranks", "10"]) == 1
    assert message in capsys.readouterr().err
