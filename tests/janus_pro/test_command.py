"""The command line: the answer on the output or the drawing in a file, the rest beside it, one sentence for a fault."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from notebooks.janus_pro import __main__ as cli
from notebooks.janus_pro import convert
from notebooks.janus_pro.pipeline import Janus


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((90, 60), 90).save("photo.png")
    return tmp_path


def test_a_question_about_a_picture(ir, capsys):
    given = ["--image", "photo.png", "--prompt", "What is it?", "--max-new-tokens", "3"]
    assert cli.main([str(ir), *given]) == 0
    said = capsys.readouterr()
    assert said.out == f"{Janus(ir).understand('photo.png', 'What is it?', max_new_tokens=3)}\n"
    assert "tokens read, the first of " in said.err and "reasoning" not in said.err


def test_the_answer_comes_first_and_its_reasoning_after_it(ir, folder, capsys):
    janus = Janus(ir)
    whole = janus.understand("photo.png", "What is it?", max_new_tokens=8).text
    reasons = shutil.copytree(ir, folder / "reasons")
    settings = json.loads((reasons / "janus.json").read_text(encoding="utf-8")) | {"answer_separator": whole[2]}
    (reasons / "janus.json").write_text(json.dumps(settings), encoding="utf-8")
    given = ["--image", "photo.png", "--prompt", "What is it?", "--max-new-tokens", "8"]
    assert cli.main([str(reasons), *given]) == 0
    said = capsys.readouterr()
    reasoning, _, answer = whole.rpartition(whole[2])
    assert said.out == f"{answer}\n" and said.err.startswith(f"reasoning: {reasoning}\n")


def test_a_drawing(ir, folder, capsys, monkeypatch):
    monkeypatch.setattr(convert, "prepare", lambda: ir)
    assert cli.main(["--draw", "a ball", "--seed", "3", "--guidance", "2", "--output", "new/ball.png"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{Path('new/ball.png')}\n" and "row 4 of 4\n" in said.err
    expected = Janus(ir).draw("a ball", 3, 2.0)[0]
    assert np.asarray(Image.open("new/ball.png")).tolist() == np.asarray(expected).tolist()
    assert [path.name for path in (folder / "new").iterdir()] == ["ball.png"]


def test_a_failed_drawing_leaves_the_earlier_one(ir, folder, capsys):
    (folder / "ball.png").write_bytes(b"earlier")
    assert cli.main([str(ir), "--draw", "a ball", "--guidance", "nan", "-o", "ball.png"]) == 1
    assert capsys.readouterr().err == "guidance is nan: give a number from 0 to 100.\n"
    assert (folder / "ball.png").read_bytes() == b"earlier"
    assert {path.name for path in folder.iterdir()} == {"ball.png", "photo.png"}


@pytest.mark.parametrize("name", ["ball", "ball.txt", "ball.psd"])
def test_an_ending_that_is_no_picture_is_told_before(name, capsys):
    assert cli.main(["nowhere", "--draw", "a ball", "-o", name]) == 1
    assert f"{name} has no known ending for a picture" in capsys.readouterr().err


def test_what_is_wrong_is_a_sentence(ir, tmp_path, capsys):
    assert cli.main([str(ir), "--image", "none.png", "--prompt", "What is it?"]) == 1
    assert capsys.readouterr().err == "none.png is not there. Correct its name.\n"
    assert cli.main([str(tmp_path), "--draw", "a ball"]) == 1
    assert "Give the folder that the conversion wrote" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [[], ["--image", "photo.png"], ["--draw", "a", "--image", "b"], ["--draw", "a", "--prompt", "b"]]
)
def test_a_question_or_a_drawing(given, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(given)
    assert "--image" in capsys.readouterr().err
