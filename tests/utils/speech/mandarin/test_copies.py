"""The pipelines hold the reader as it is in `utils`."""

import pytest

from utils.speech.mandarin_copies import MASTER, contents, copies, write


def test_there_are_copies():
    assert len(copies()) >= 2 and len(contents(MASTER)) >= 5


@pytest.mark.parametrize("folder", copies(), ids=lambda folder: folder.parts[-3])
def test_a_copy_is_the_master(folder):
    assert contents(folder) == contents(MASTER), "python -m utils.speech.mandarin_copies writes the copies"


def test_new_changed_and_old_modules(tmp_path):
    folder = tmp_path / "notebooks" / "toy" / "pipeline" / "mandarin"
    folder.mkdir(parents=True)
    assert copies(tmp_path) == [folder] and write(folder) and not write(folder)
    (folder / "numbers.py").write_text("", encoding="utf-8")
    (folder / "gone.py").write_text("", encoding="utf-8")
    assert write(folder) and contents(folder) == contents(MASTER)
