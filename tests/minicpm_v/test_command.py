"""The command line: the published arguments, the answer on the output, the rest beside it, one sentence for a fault."""

import pytest
from PIL import Image

from notebooks.minicpm_v import __main__ as cli
from notebooks.minicpm_v import convert
from notebooks.minicpm_v.pipeline import VisionChat


@pytest.fixture
def photo(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((170, 112), 90).save("photo.png")
    return "photo.png"


def test_the_published_command(ir_2_6, photo, capsys):
    assert cli.main([str(ir_2_6), "-pic", photo, "-p", "What is it?", "--max-new-tokens", "6"]) == 0
    said = capsys.readouterr()
    assert said.out == VisionChat(ir_2_6).ask(photo, "What is it?", max_new_tokens=6) + "\n"
    assert said.err.startswith("7 slices in ") and "tokens/s" in said.err


def test_several_pictures_whole_and_the_tiny_model(ir_2_6, photo, capsys, monkeypatch):
    monkeypatch.setattr(convert, "prepare", lambda: ir_2_6)
    given = ["-pic", photo, "-pic", photo, "-p", "What is it?", "--no-slicing", "--device", "CPU"]
    assert cli.main([*given, "--max-new-tokens", "2"]) == 0
    assert capsys.readouterr().err.startswith("2 slices in ")


def test_what_is_wrong_is_a_sentence(ir_2_6, photo, tmp_path, capsys):
    assert cli.main([str(ir_2_6), "-pic", "none.png", "-p", "What is it?"]) == 1
    assert capsys.readouterr().err == "none.png is not there. Correct its name.\n"
    assert cli.main([str(tmp_path), "-pic", photo, "-p", "What is it?"]) == 1
    assert "Give the folder that the conversion wrote" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main([str(ir_2_6)])
    assert "-p" in capsys.readouterr().err
