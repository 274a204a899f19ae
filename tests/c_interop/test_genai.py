"""One contract for two libraries: our GenAI functions and, where OPENVINO_GENAI_C names it, the official library.

No Python package has the official library, so it is run only where somebody sets the variable:
`OPENVINO_GENAI_C=/path/libopenvino_genai_c.so pytest tests/c_interop/test_genai.py`.
"""

import os
import re
import subprocess
from pathlib import Path

import openvino_genai as genai
import pytest

from notebooks.c_interop import convert
from notebooks.c_interop.convert import clients
from notebooks.c_interop.pipeline import build
from tests.c_interop import tools

PROMPT = "The capital of France is"
OFFICIAL = "OPENVINO_GENAI_C"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """SmolLM2 without a chat template, which only the official library applies."""
    folder = tmp_path_factory.mktemp("smollm2")
    for file in convert.prepare().iterdir():
        if file.name.endswith("tokenizer.xml"):
            text = re.sub(r"<chat_template [^>]*?(\"[^\"]*\")? ?/>", "", file.read_text(encoding="utf-8"))
            (folder / file.name).write_text(text, encoding="utf-8")
        elif not file.name.startswith("chat_template"):
            (folder / file.name).symlink_to(file)
    return folder


@pytest.fixture(params=["ours", "official"], scope="module")
def program(request):
    """The program, linked with one of the libraries."""
    tools.built()
    cache = convert.build_folder()
    if request.param == "ours":
        library = build.library(cache, build.source("llm.c"), build.source("genai.c"))
    elif os.environ.get(OFFICIAL):
        library = Path(os.environ[OFFICIAL])
    else:
        pytest.skip(f"{OFFICIAL} names no official library, which no Python package has.")
    files = {"genai.c": (clients.FOLDER / "genai.c").read_text(encoding="utf-8")}
    paths = [f"-I{build.SOURCES}", f"-I{build.package('openvino') / 'include'}", f"-Wl,-rpath,{library.parent}"]
    command = [build.compiler(), "genai.c", *paths, str(library), *build.link_flags()[1:], "-o", "genai"]
    return build.compiled(cache, files, command, build.source("genai.h"), str(library)) / "genai"


@pytest.fixture(scope="module")
def lines(program, folder):
    run = subprocess.run([program, folder], input=PROMPT.encode(), capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode().split("\n")


@pytest.fixture(scope="module")
def expected(folder):
    """What Python's openvino_genai answers."""
    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.ignore_eos = 12, True
    return str(genai.LLMPipeline(str(folder), "CPU", INFERENCE_PRECISION_HINT="f32").generate(PROMPT, settings))


def test_faults_have_the_official_status(lines):
    assert lines[:5] == ["no folder: -17", "NULL folder: -14", "create: 0", "NULL prompt: -14", "no results: -14"]


def test_the_text_is_that_of_python(lines, expected):
    output = "\n".join(lines)
    answer = re.search(r"text of (\d+) bytes: (.*?)\nmetrics: 0\ntokens: 12 after 5", output, re.DOTALL)
    assert answer[2] == expected and int(answer[1]) == len(expected.encode())


def test_results_say_what_they_need(lines):
    for expected in ("size: 0", "too small: -6", "string: 0", "streamed all: 1", "max_new_tokens: 0", "generate: 0"):
        assert lines.count(expected) == 2, expected


def test_the_streamer_can_cancel(lines):
    made, pieces = map(int, re.findall(r"tokens: (\d+) after 5, pieces: (\d+)", "\n".join(lines))[1])
    assert pieces == 4 and made < 20


def test_metrics_are_there(lines):
    for expected in ("ttft: 0 1", "tpot: 0 1", "load time: 0 1", "metrics: 0"):
        assert lines.count(expected) == 2, expected
