"""The block that readers copy from each notebook runs as it stands, in an empty folder, in a fresh process."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from notebooks.deepseek_serving import convert as deepseek_serving
from notebooks.deepseek_serving.server import repository, serve
from notebooks.dien import convert as dien
from notebooks.gpt_sovits import convert as gpt_sovits
from notebooks.gpt_sovits.measuring.quality import voices
from notebooks.graph_customization import convert as graph_customization
from notebooks.janus_pro import convert as janus_pro
from notebooks.minicpm_v import convert as minicpm_v
from notebooks.minicpm_v.data import held_out
from notebooks.sambert_hifigan.convert import voice as sambert_hifigan
from notebooks.wav2lip import convert as wav2lip

ROOT = Path(__file__).parents[1]


@contextmanager
def a_folder(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"MODEL_FOLDER": str(graph_customization.prepare("tiny", "FP16"))}


@contextmanager
def a_file(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"MODEL_FILE": str(dien.prepare("tiny", "FP32"))}


@contextmanager
def a_server(scratch: Path) -> Iterator[dict[str, str]]:
    models = repository.write(scratch / "models", "smollm2", deepseek_serving.prepare("tiny", "INT4"))
    with serve(models, kind="local", quiet=True) as server:
        yield {"SERVER_URL": server.url}


@contextmanager
def two_models_a_face_and_a_voice(scratch: Path) -> Iterator[dict[str, str]]:
    samples = ROOT / "notebooks" / "wav2lip" / "samples"
    files = {"FACE": samples / "astronaut.jpg", "VOICE": samples / "voice.wav", "RESULT": scratch / "result.mp4"}
    models = {"WAV2LIP": wav2lip.prepare("wav2lip"), "FACE_DETECTION": wav2lip.prepare("face_detection")}
    yield {name: str(path) for name, path in (models | files).items()}


def a_folder_and_a_picture(convert):
    @contextmanager
    def needs(scratch: Path) -> Iterator[dict[str, str]]:
        scratch.mkdir()
        ((picture, _),) = held_out("count", 1)
        picture.save(scratch / "picture.png")
        yield {"MODEL_FOLDER": str(convert.prepare("tiny", "INT8")), "PICTURE": str(scratch / "picture.png")}

    return needs


@contextmanager
def a_voice_and_a_place_for_its_sound(scratch: Path) -> Iterator[dict[str, str]]:
    scratch.mkdir()
    yield {"VOICE_FOLDER": str(sambert_hifigan.prepare("tiny")), "SOUND": str(scratch / "said.wav")}


@contextmanager
def a_folder_and_a_voice_with_its_words(scratch: Path) -> Iterator[dict[str, str]]:
    scratch.mkdir()
    voice = voices()[0]
    given = {"MODEL_FOLDER": gpt_sovits.prepare("tiny", "INT8"), "SOUND": scratch / "said.wav"}
    yield {"VOICE": str(voice.recording), "WORDS": voice.words} | {name: str(path) for name, path in given.items()}


# what a block needs beside the copied files, as environment variables, and a pattern of what it must print
BLOCKS = {
    "gpt_sovits": (
        a_folder_and_a_voice_with_its_words,
        r"^[1-9]\d*\.\d s of speech at 32000 Hz, marked as synthetic$",
    ),
    "graph_customization": (a_folder, r"InsertSlice: changed[^$]*Paris"),
    "dien": (a_file, r"^0\.\d+ 0\.\d+$"),
    "deepseek_serving": (a_server, r"Paris"),
    "janus_pro": (a_folder_and_a_picture(janus_pro), r": \d\n\(96, 96\)$"),
    "minicpm_v": (a_folder_and_a_picture(minicpm_v), r": \d$"),
    "sambert_hifigan": (a_voice_and_a_place_for_its_sound, r"^[1-9]\d*\.\d s of speech at 16000 Hz$"),
    "wav2lip": (two_models_a_face_and_a_voice, r"^result.mp4 [1-9]\d* frames at 25$"),
}


@pytest.mark.parametrize("case", sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb")))
def test_the_block_to_copy_runs_in_an_empty_folder(case, tmp_path):
    book = json.loads((ROOT / "notebooks" / case / f"{case}.ipynb").read_text(encoding="utf-8"))
    (block,) = ["".join(c["source"]) for c in book["cells"] if "copy-block" in c["metadata"].get("tags", [])]
    (tmp_path / "use.py").write_text(block, encoding="utf-8")
    pipeline = ROOT / "notebooks" / case / "pipeline"
    if pipeline.is_dir():
        shutil.copytree(pipeline, tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(pipeline.with_suffix(".py"), tmp_path)
    needs, prints = BLOCKS[case]
    with needs(tmp_path / "needs") as variables:
        environment = {**os.environ, **variables, "TMPDIR": str(tmp_path)}
        run = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.search(prints, run.stdout, re.MULTILINE), run.stdout
