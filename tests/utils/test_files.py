"""A file is replaced whole or not at all, with what was written beside it."""

import pytest

from utils import files


def test_a_file_appears_whole_and_nothing_else_stays(tmp_path):
    path = tmp_path / "new" / "model.xml"
    with files.replaced(path) as written:
        written.write_text("net", encoding="utf-8")
        written.with_suffix(".bin").write_text("weights", encoding="utf-8")
        assert written.name == path.name and not path.exists()
    assert {file.name: file.read_text(encoding="utf-8") for file in path.parent.iterdir()} == {
        "model.xml": "net",
        "model.bin": "weights",
    }


def test_a_failure_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("before", encoding="utf-8")
    with pytest.raises(ZeroDivisionError), files.replaced(path) as written:
        written.write_text("half", encoding="utf-8")
        raise ZeroDivisionError
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"] and path.read_text(
        encoding="utf-8"
    ) == "before"
