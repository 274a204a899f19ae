"""The programs in other languages give the same tokens and text, and survive what goes wrong."""

import json
import subprocess

import pytest

from notebooks.c_interop import network
from notebooks.c_interop.__main__ import main
from notebooks.c_interop.convert import clients
from tests.c_interop import tools
from tests.c_interop.tools import TEXT


@pytest.fixture(params=clients.CLIENTS)
def language(request, built):
    """Each language whose tools are here; the others are skipped by name, and fail in `.ci/run`."""
    if sentence := clients.missing(request.param):
        tools.unavailable(sentence)
    return request.param


def test_tokens_are_those_of_python(language, arithmetic):
    prompt = "a prompt, 你好 🙂"
    outcome = clients.run(language, arithmetic, prompt, 40)
    assert outcome.ids == network.arithmetic([*prompt.encode()], 40)[: len(outcome.ids)]
    assert len(outcome.ids) == 40 and outcome.overhead_us > 0 and not outcome.errors


def test_text_is_streamed_in_whole_characters(language, recitation):
    outcome = clients.run(language, recitation, "x", 64)
    assert outcome.text == TEXT
    seen = list(clients.stream(language, recitation, "x", 64))
    assert all("".join(seen[i + 1]).startswith(seen[i]) for i in range(len(seen) - 1))
    assert seen[-1].startswith(TEXT)


def test_a_callback_that_fails_stays_in_its_language(language, recitation):
    """The program says what happened, and asks the same model again."""
    outcome = clients.run(language, recitation, "x", 64, "fail")
    assert outcome.text == f"你好 \n{TEXT}"
    assert "The callback failed: at the third piece" in outcome.errors


@pytest.mark.parametrize("thrown", ['"a text"', "42", 'new Error("an error")'])
def test_node_throws_whatever_the_callback_has_thrown(thrown, built, recitation):
    if sentence := clients.missing("Node"):
        tools.unavailable(sentence)
    script = f"""
        const llm = require("./llm.node"), model = llm.open({json.dumps(str(recitation))}), thrown = {thrown};
        const fail = () => {{ throw thrown; }};
        try {{ llm.generate(model, "x", 8, fail); }} catch (error) {{ console.log(error === thrown); }}
        try {{ llm.generate(model, "x", 8, 1); }} catch (error) {{ console.log(error.message); }}
        console.log(llm.generate(model, "x", 8, () => {{}}).ids.length);
    """
    command = ["node", "-e", script]
    done = subprocess.run(command, cwd=clients.program("Node"), capture_output=True, text=True, encoding="utf-8")
    expected = ["true", "Give a handle, a prompt, a number of tokens and a function.", "8"]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("arguments", [[""], ["x", "--tokens", "0"]])
def test_a_request_for_nothing_is_refused(arguments, capsys):
    assert main([*arguments, "--folder", "none"]) == 1
    assert "Give a prompt that is not empty, and --tokens of 1 or more." in capsys.readouterr().err


def test_an_error_is_the_library_s_sentence(language, tmp_path):
    with pytest.raises(ValueError, match="^There is no generation_config.json in the folder"):
        clients.run(language, tmp_path, "x", 4)


def test_a_missing_tool_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clients.missing("C#") == "C# needs mcs and mono and a C compiler: `apt install mono-mcs mono-runtime`."
    with pytest.raises(ValueError, match="Rust needs rustc"):
        clients.program("Rust")
    with pytest.raises(ValueError, match="no client in 'Cobol'. There are: C, C#, Rust, Go, Node"):
        clients.program("Cobol")


def test_output_without_an_end_is_an_error():
    with pytest.raises(ValueError, match="The client in Go ended without an answer"):
        clients.outcome("Go", b"half an ans", "")
