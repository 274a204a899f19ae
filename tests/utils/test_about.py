"""about.toml is read whole or not at all, and every notebook has one."""

import re
from pathlib import Path

import pytest
from PIL import Image

from utils import about
from utils.paths import ROOT

TEMPLATE = (ROOT / "utils/template/notebooks/new_case/about.toml").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "thumbnail.jpg").touch()
    (folder / "about.toml").write_text(TEMPLATE, encoding="utf-8")
    return folder


def test_the_template_is_complete(folder):
    loaded = about.load(folder)
    assert (loaded.case, loaded.order, loaded.level) == ("toy", 100, "beginner")
    assert loaded.number.metric == "accuracy, held-out digits" and "{percent}" in loaded.number.text
    assert loaded.thumbnail.file == "thumbnail.jpg" and loaded.released.run


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("order = 100", "", r"notebooks/toy/about.toml, \$: 'order' is a required property"),
        ("order = 100", "order = 0", r"about.toml, \$.order: 0 is less than the minimum"),
        ('"beginner"', '"easy"', r"about.toml, \$.level: 'easy' is not one of \['beginner'"),
        ("network.", "network", r"about.toml, \$.summary: .* does not match"),
        ('"Read', '"It reads. Read', r"about.toml, \$.summary: .* does not match"),
        ("alt =", "text =", r"about.toml, \$.thumbnail: "),
        ("thumbnail.jpg", "../dien/thumbnail.jpg", r"about.toml, \$.thumbnail.file: .* does not match"),
        ("thumbnail.jpg", "other.jpg", "names the thumbnail toy/other.jpg, which is missing"),
        ("[number]", "[numbers]", r"about.toml, \$: "),
        ("level = ", "level = =", "about.toml cannot be read: .* Copy utils/template's"),
    ],
)
def test_faults_name_the_field(folder, old, new, fault):
    assert old in TEMPLATE
    (folder / "about.toml").write_text(TEMPLATE.replace(old, new), encoding="utf-8")
    with pytest.raises(about.InvalidAbout, match=fault):
        about.load(folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(about.InvalidAbout, match=r"notebooks/.*/about.toml cannot be read"):
        about.load(tmp_path)


@pytest.mark.parametrize("case", sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb")))
def test_every_notebook_is_described_and_has_a_small_picture(case):
    described = about.load(ROOT / "notebooks" / case)
    picture = ROOT / "notebooks" / case / described.thumbnail.file
    assert picture.stat().st_size <= 40_000
    assert Image.open(picture).size == (320, 200)
    assert len(described.thumbnail.alt.split()) > 3
    assert re.search(r"\{(value|percent|complement|count)\}", described.number.text)
