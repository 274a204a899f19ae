"""The command line writes a .wav file whole or not at all; what is wrong is one sentence."""

import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from notebooks.sambert_hifigan import __main__ as command
from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.pipeline import Spoken, Synthesizer
from tests.sambert_hifigan.small import NAMES, RATE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, RATE)
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2")


def test_the_command(irs, folder):
    given = [str(irs["plain"]), "--text", "你好。谢谢！", "--speaker", NAMES[0], "-o", "said/out.wav"]
    run = subprocess.run(
        [sys.executable, "-m", "notebooks.sambert_hifigan", *given], capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    found = read(folder / "said" / "out.wav")
    assert run.stdout == f"{Path('said/out.wav')}: {len(found) / RATE:.2f} s\n"
    expected, _ = Synthesizer(irs["plain"])("你好。谢谢！", NAMES[0])
    assert len(found) == len(expected) and np.abs(found / 32767 - expected).max() < 1e-4


def test_without_a_folder_it_is_the_tiny_voice(irs, folder, monkeypatch, capsys):
    monkeypatch.setattr(convert, "prepare", lambda: irs["nsf"])
    given = ["--text", "你好", "--speaker", NAMES[1], "--speed", "2", "--seed", "4"]
    assert command.main(given) == 0
    assert capsys.readouterr().out.startswith("out.wav: ")
    expected, _ = Synthesizer(irs["nsf"])("你好", NAMES[1], speed=2, seed=4)
    assert np.abs(read(folder / "out.wav") / 32767 - expected).max() < 1e-4
    assert [path.name for path in folder.iterdir()] == ["out.wav"]


def test_loud_samples_are_cut_off_and_do_not_wrap(folder):
    samples = np.array([0, 0.5, 1, 1.5, -1, -3], np.float32)
    assert command.write(folder / "a.wav", [Spoken("", samples, RATE, None, [])] * 2, RATE) == 12 / RATE
    assert read(folder / "a.wav").tolist() == [0, 16384, 32767, 32767, -32767, -32767] * 2


def test_a_failure_leaves_what_was_there(irs, folder, capsys):
    (folder / "out.wav").write_bytes(b"mine")
    given = [str(irs["plain"]), "--speaker", NAMES[0], "--text"]
    assert command.main([*given, "你好。" + "好" * 80]) == 1  # the second sentence is too long
    assert "Cut it into shorter ones" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["out.wav"] and (folder / "out.wav").read_bytes() == b"mine"


def test_what_is_wrong_is_a_sentence(irs, folder, capsys):
    given = ["--text", "你好", "--speaker", "Carl"]
    assert command.main([str(irs["plain"]), *given]) == 1
    assert capsys.readouterr().err == "There is no speaker 'Carl'. Choose one of: Anna, Bao.\n"
    assert command.main([str(irs["plain"]), "--text", "你好", "--speaker", NAMES[0], "-o", "a.mp3"]) == 1
    assert capsys.readouterr().err == "The sound is written to a .wav file, not to a.mp3. Give it another name.\n"
    assert command.main(["nowhere", *given]) == 1
    assert "Name the folder of a converted voice" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["--text", "你好"])
    assert "--speaker" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
