"""The command line: the published arguments and those of all notebooks; what is wrong is one sentence."""

import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from notebooks.wav2lip import __main__ as cli
from notebooks.wav2lip import convert
from notebooks.wav2lip.pipeline.media import frame_rate, read_frames
from tests.wav2lip.files import hopper, sound, tone, video
from utils import weights


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a face and a voice of 0.4 seconds."""
    monkeypatch.chdir(tmp_path)
    video(Path("face.mp4"), [hopper(200)] * 6, 20)
    cv2.imwrite("face.png", hopper(200))
    sound(Path("voice.wav"), tone(0.4))
    return tmp_path


def arguments(generator_ir, face: str, *more: str) -> list[str]:
    models = ["--wav2lip_path", str(generator_ir), "--face_detection_path", str(weights.fetch("blazeface"))]
    return [*models, "--inference_device", "CPU", "--face", face, "--audio", "voice.wav", *more]


def test_the_published_command(generator_ir, folder):
    command = [sys.executable, "-m", "notebooks.wav2lip", *arguments(generator_ir, "face.mp4")]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    result = Path("out.mp4")
    assert run.stdout.startswith(f"{result}: 0.40 s, 8 frames at ")
    assert frame_rate(result) == 20 and len(list(read_frames(result, 20))) == 8


@pytest.mark.parametrize("output", ["-o", "--output", "--outfile"])
@pytest.mark.parametrize("device", ["--device", "--inference_device"])
def test_names_of_arguments(monkeypatch, output, device):
    given = {}
    monkeypatch.setattr(cli, "write_video", lambda options: given.update(vars(options)))
    assert cli.main(["--face", "face.mp4", "--audio", "voice.wav", output, "said.mp4", device, "GPU"]) == 0
    assert (given["output"], given["device"]) == (Path("said.mp4"), "GPU")


def test_static_and_where_the_result_goes(generator_ir, folder, monkeypatch, capsys):
    monkeypatch.setattr(convert, "prepare", {"wav2lip": generator_ir, "face_detection": weights.fetch("blazeface")}.get)
    given = ["--face", "face.png", "--audio", "voice.wav", "--outfile", "said/it.mp4", "--fps", "30", "--static"]
    assert cli.main([*given, "--pads", "0", "20", "0", "0"]) == 0  # without models, those of the tiny checkpoint
    assert "12 frames" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"face.mp4", "face.png", "voice.wav", "said"}


def test_what_is_wrong_is_a_sentence(generator_ir, folder, capsys):
    assert cli.main(arguments(generator_ir, "other.mp4")) == 1
    assert capsys.readouterr().err == "other.mp4 is not there. Correct its name.\n"
    assert not Path("out.mp4").exists()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["--face", "face.mp4"])
    assert "--audio" in capsys.readouterr().err
