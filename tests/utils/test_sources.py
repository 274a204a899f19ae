"""What a module imports is read from its source: relative imports, packages and imports inside functions count."""

import pytest

from utils import sources


@pytest.fixture
def write(tmp_path):
    def writing(name: str, text: str = "") -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        sources.imported.cache_clear()

    return writing


def test_relative_imports_and_packages_count(write, tmp_path):
    write("room/convert.py", "from room.pipeline import speak\nimport numpy.linalg\n")
    write("room/pipeline/__init__.py", "from .speaker import speak\n")
    write("room/pipeline/speaker.py", "from . import lexicon\nfrom .text.numbers import spelled\n")
    write("room/pipeline/lexicon.py", "def late():\n    from ..shared import words\n")
    write("room/pipeline/text/numbers.py", "from .... import os\nfrom ...data import x\n")
    write("room/shared.py")
    write("room/data.py", "import room.convert\n")
    below = ("", ".speaker", ".lexicon", ".text.numbers")
    assert sources.reachable("room.convert", tmp_path) == {
        "room.convert",
        "room.shared",
        "room.data",
        *(f"room.pipeline{name}" for name in below),
    }
    beside = {"room.pipeline.lexicon", "room.pipeline.text.numbers"}
    assert sources.imported("room.pipeline.speaker", tmp_path) == beside


def test_what_is_not_of_the_project_is_not_found(write, tmp_path):
    write("one.py", "import json\n")
    assert sources.file_of("json", tmp_path) is None and sources.reachable("json", tmp_path) == set()
    assert sources.reachable("one", tmp_path) == {"one"}
