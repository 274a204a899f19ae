"""The published benchmark: what it prints, and sentences for what is wrong."""

import re

import pytest
from PIL import Image

from notebooks.janus_pro.measuring import benchmark

ROUND = r"round \d: first of {} tokens after \d+\.\d ms, then \d+\.\d tokens/s\n"
MEDIANS = r"first token: \d+\.\d ms\nfrom the second token on: \d+\.\d tokens/s\n"
MEMORY = r"peak memory of the process: \d+ MB\n"


def test_drawings_are_measured(ir, capsys):
    assert benchmark.main(["--task", "t2i", "-m", str(ir), "--niter", "2"]) == 0
    rounds = ROUND.format(16) * 2
    picture = r"making a picture of the tokens: \d+\.\d ms\nimage: \d+\.\d{3} s\n"
    assert re.fullmatch(rf"pipeline start: \d+\.\d\d s\n{rounds}{MEDIANS}{picture}{MEMORY}", capsys.readouterr().out)


def test_answers_are_measured(ir, tmp_path, capsys):
    Image.effect_noise((90, 60), 90).save(tmp_path / "photo.png")
    given = ["--image", str(tmp_path / "photo.png"), "--prompt", "What is it?", "--max-new-tokens", "2"]
    assert benchmark.main(["--task", "vlm", "-m", str(ir), "-d", "CPU", "--niter", "1", *given]) == 0
    seeing = r"seeing the picture: \d+\.\d ms\nanswer: \d+\.\d{3} s\n"
    assert re.fullmatch(
        rf"pipeline start: \d+\.\d\d s\n{ROUND.format(2)}{MEDIANS}{seeing}{MEMORY}", capsys.readouterr().out
    )


def test_the_first_round_does_not_count(janus):
    calls = []

    def call():
        calls.append(janus.draw("a ball"))

    found = benchmark.measure(call, janus, 2)
    assert len(calls) == 3 and found[-1] is janus.timings and found[0] is not found[1]


def test_medians_are_of_the_rounds():
    rounds = [
        benchmark.Timings(image_s=0.5, first_token_s=first, last_token_s=first + 1, total_s=9, generated_tokens=11)
        for first in (1, 5, 3)
    ]
    assert benchmark.report("t2i", rounds) == [
        "first token: 3000.0 ms",
        "from the second token on: 10.0 tokens/s",
        "making a picture of the tokens: 500.0 ms",
        "image: 9.000 s",
    ]
    single = [benchmark.Timings(first_token_s=0.25, total_s=0.3, generated_tokens=1)]
    assert benchmark.report("vlm", single)[1] == "no second token to time"
    assert benchmark.describe(single[0]) == "first of 1 tokens after 250.0 ms"


def test_what_is_wrong_is_a_sentence(ir, tmp_path, capsys):
    assert benchmark.main(["--task", "t2i", "-m", str(tmp_path)]) == 1
    assert "Give the folder that the conversion wrote" in capsys.readouterr().err
    assert benchmark.main(["--task", "vlm", "-m", str(ir), "--image", "none.png"]) == 1
    assert capsys.readouterr().err == "none.png is not there. Correct its name.\n"
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--task", "vlm", "-m", str(ir), "--niter", "0"])
