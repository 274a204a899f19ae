"""The command line writes a marked .wav file whole or not at all; what is wrong is one sentence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from notebooks.gpt_sovits import __main__ as command
from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.pipeline import VoiceCloner
from notebooks.gpt_sovits.pipeline.audio_io import is_marked

WORDS = "The words that are said in the recording."
SAY = ["--recording", "voice.wav", "--words", WORDS, "--text"]


@pytest.fixture(autouse=True)
def folder(tmp_path, voice, monkeypatch) -> Path:
    """A working folder with a recording."""
    monkeypatch.chdir(tmp_path)
    wavfile.write("voice.wav", voice[1], voice[0])
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_command(ir, folder, frontend, capsys):
    given = [str(ir), *SAY, "Good morning. It is late.", "--seed", "4", "--speed", "2", "-o", "said/out.wav"]
    assert command.main(given) == 0
    rate, found = wavfile.read("said/out.wav")
    samples, _ = VoiceCloner(ir)("Good morning. It is late.", "voice.wav", WORDS, seed=4, speed=2)
    assert rate == 1000 and len(found) == len(samples) and np.abs(found / 32767 - samples).max() < 1e-3
    assert is_marked("said/out.wav") and files(folder / "said") == ["out.wav"]
    told = capsys.readouterr()
    assert told.out == f"{Path('said/out.wav')}: {len(samples) / rate:.2f} s\n"
    lines = told.err.splitlines()
    assert lines[0].startswith("1 of 2: ") and lines[1].startswith("2 of 2: ")
    assert "tokens, " in lines[-1] and "a second of sound took" in lines[-1]


def test_without_a_folder_it_is_the_tiny_model(ir, folder, frontend, monkeypatch, capsys):
    monkeypatch.setattr(convert, "prepare", lambda: ir)
    given = [*SAY, "你好你好。", "--language", "zh", "--recording-language", "en"]
    assert command.main(given) == 0
    assert capsys.readouterr().out.startswith("out.wav: ")
    expected, _ = VoiceCloner(ir)("你好你好。", "voice.wav", WORDS, "zh", "en")
    assert np.abs(wavfile.read("out.wav")[1] / 32767 - expected).max() < 1e-3


def test_notes_are_shown(ir, folder, frontend, capsys):
    assert command.main([str(ir), "--recording", "voice.wav", "--words", "Hello.", "--text", "Good day."]) == 0
    assert "The words are too few for 4.0 s of speech" in capsys.readouterr().err


def test_a_failure_leaves_what_was_there(ir, folder, frontend, monkeypatch, capsys):
    (folder / "out.wav").write_bytes(b"mine")

    def fails(*arguments):
        raise ValueError("No more.")

    monkeypatch.setattr(VoiceCloner, "_sound", fails)
    assert command.main([str(ir), *SAY, "Good day."]) == 1
    assert capsys.readouterr().err == "No more.\n"
    assert files(folder) == ["out.wav", "voice.wav"] and (folder / "out.wav").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-o", "a.mp3"], "The sound is written to a .wav file, not to a.mp3. Give it another name.\n"),
        (["--recording", "none.wav"], "none.wav is not there. Correct its name.\n"),
        (["--language", "fr"], "Language 'fr' is not known.\n"),
        (["--speed", "9"], "speed is 9.0: give a number from 0.5 to 2.0.\n"),
        (["--speaker", "voice.wav"], "Give a .npy file with a speaker's embedding.\n"),
        (["--speaker", "none.npy"], "Give a .npy file with a speaker's embedding.\n"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_is_wrong_is_a_sentence(given, sentence, ir, folder, frontend, capsys):
    assert command.main([str(ir), *SAY, "Good day.", *given]) == 1
    told = capsys.readouterr()
    assert told.err.endswith(sentence) and told.err.count("\n") == 1 and told.out == ""
    assert files(folder) == ["voice.wav"]


def test_the_exit_status_tells():
    def run(*given: str) -> subprocess.CompletedProcess:
        program, root = [sys.executable, "-m", "notebooks.gpt_sovits"], Path(command.__file__).parents[2]
        return subprocess.run([*program, *given], cwd=root, capture_output=True, text=True, encoding="utf-8")

    named = run(*SAY, "Good day.", "-o", "a.txt")
    assert named.returncode == 1
    assert named.stderr == "The sound is written to a .wav file, not to a.txt. Give it another name.\n"
    usage = run("--text", "Good day.")
    assert usage.returncode == 2 and "--recording" in usage.stderr
