"""The command line: its arguments, the answer on the output, the rest on the error output, one sentence for a fault."""

import json
import shutil

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
    assert cli.main([str(ir_2_6), "--image", photo, "--prompt", "What is it?", "--max-new-tokens", "6"]) == 0
    said = capsys.readouterr()
    assert said.out == VisionChat(ir_2_6).ask(photo, "What is it?", max_new_tokens=6).text + "\n"
    assert said.err.startswith("7 pieces in ") and "tokens/s" in said.err


def test_several_pictures_whole_and_the_tiny_model(ir_2_6, photo, capsys, monkeypatch):
    monkeypatch.setattr(convert, "prepare", lambda: ir_2_6)
    given = ["--image", photo, "--image", photo, "--prompt", "What is it?", "--no-slicing", "--device", "CPU"]
    assert cli.main([*given, "--max-new-tokens", "2"]) == 0
    assert capsys.readouterr().err.startswith("2 pieces in ")


def test_the_answer_comes_first_and_the_reasoning_after_it(ir_2_6, photo, tmp_path, capsys):
    text = VisionChat(ir_2_6).ask(photo, "What is it?", max_new_tokens=9).text
    folder = shutil.copytree(ir_2_6, tmp_path / "ir")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"answer_separator": text[4]}), encoding="utf-8")
    assert cli.main([str(folder), "--image", photo, "--prompt", "What is it?", "--max-new-tokens", "9"]) == 0
    said = capsys.readouterr()
    before, _, after = text.rpartition(text[4])
    assert said.out == f"{after}\n" and said.err.startswith(f"reasoning: {before}\n") and before


def test_what_is_wrong_is_a_sentence(ir_2_6, photo, tmp_path, capsys):
    assert cli.main([str(ir_2_6), "--image", "none.png", "--prompt", "What is it?"]) == 1
    assert capsys.readouterr().err == "none.png is not there. Correct its name.\n"
    assert cli.main([str(tmp_path), "--image", photo, "--prompt", "What is it?"]) == 1
    assert "Give the folder that the conversion wrote" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main([str(ir_2_6)])
    assert "--prompt" in capsys.readouterr().err
