"""What a module imports is read from its source: relative imports, packages and imports inside functions count."""

import pytest

from utils import sources


@pytest.fixture
def write(tmp_path):
    def writing(name: str, text: str = "") -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        sources.imported.cache_clear()

    return writing


def test_relative_imports_and_packages_count(write, tmp_path):
    write("toy/convert.py", "from toy.pipeline import speak\nimport numpy.linalg\n")
    write("toy/pipeline/__init__.py", "from .speaker import speak\n")
    write("toy/pipeline/speaker.py", "from . import lexicon\nfrom .text.numbers import spelled\n")
    write("toy/pipeline/lexicon.py", "def late():\n    from ..shared import words\n")
    write("toy/pipeline/text/numbers.py", "from .... import os\nfrom ...data import x\n")
    write("toy/shared.py")
    write("toy/data.py", "import toy.convert\n")
    below = ("", ".speaker", ".lexicon", ".text.numbers")
    assert sources.reachable("toy.convert", tmp_path) == {
        "toy.convert",
        "toy.shared",
        "toy.data",
        *(f"toy.pipeline{name}" for name in below),
    }
    beside = {"toy.pipeline.lexicon", "toy.pipeline.text.numbers"}
    assert sources.imported("toy.pipeline.speaker", tmp_path) == beside


def test_what_is_not_of_the_project_is_not_found(write, tmp_path):
    write("one.py", "import json\n")
    assert sources.file_of("json", tmp_path) is None and sources.reachable("json", tmp_path) == set()
    assert sources.reachable("one", tmp_path) == {"one"}
