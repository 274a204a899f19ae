"""Measuring on small models: rows are what they say, and mistakes are seen."""

import pytest

from notebooks.c_interop import convert, figures, measuring, network
from notebooks.c_interop.pipeline import LLM, library
from tests.c_interop import tools
from utils.models import llm

PROMPT = "Once upon a time"


def test_the_real_model_gives_the_tokens_of_python(built):
    """SmolLM2 through C, and by the same model in Python, with characters of several bytes."""
    import openvino_genai as genai
    from transformers import AutoTokenizer

    folder = convert.prepare()
    session, tokenizer = llm.Session(folder / llm.MODEL_XML), genai.Tokenizer(str(folder))
    fast = AutoTokenizer.from_pretrained(folder)
    with LLM(folder, built=built) as model:
        for prompt in (PROMPT, *measuring.STREAMED):
            expected = session.generate(tokenizer.encode(prompt).input_ids.data, 16)[0].tolist()
            answer = model.generate(prompt, 16, ignore_end=True)
            assert answer.ids == expected
            decoded = fast.decode(expected, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert answer.text == decoded


def test_a_cut_character_is_counted(recitation, built):
    def decode(ids):
        return bytes(ids[:-1]).decode()

    prompts = ["x", "y"]
    with LLM(recitation, built=built) as model:
        assert measuring.streamed_right(model, decode, prompts) == 1
    with LLM(recitation, built=measuring.mistaken("characters are cut")) as model:
        assert measuring.streamed_right(model, decode, prompts) == 0


@pytest.mark.parametrize("mistake", ["the mask is one short", "the past does not advance"])
def test_mistakes_change_the_tokens(arithmetic, mistake):
    tools.built()
    with LLM(arithmetic, built=measuring.mistaken(mistake)) as model:
        assert model.generate(PROMPT, 8, ignore_end=True).ids != network.arithmetic([*PROMPT.encode()], 8)


def test_an_unknown_source_is_an_error(monkeypatch):
    monkeypatch.setitem(measuring.MISTAKES, "nothing", ("no such line", ""))
    with pytest.raises(ValueError, match="occurs 0 times in llm.c"):
        measuring.mistaken("nothing")


def test_a_language_is_a_row_with_its_time(arithmetic, built, monkeypatch):
    expected = network.arithmetic([*b"x"], 12)
    monkeypatch.setattr(measuring.clients, "missing", lambda language: "" if language == "C" else f"no {language}")
    rows, notes = measuring.languages(arithmetic, "x", 12, expected)
    assert rows[0][:2] == ["C", "12 of 12 equal"] and rows[1] == ["C#", "no C#"]
    assert list(notes) == [f"{figures.OUTSIDE}C"] and notes[f"{figures.OUTSIDE}C"] > 0
    assert len(figures.overheads(notes).axes[0].patches) == 1
    with pytest.raises(ValueError, match="The notes have no language"):
        figures.overheads({})


def test_workloads_never_repeat_a_prompt():
    seen = []
    work = measuring._workload(seen.append)[measuring.WORKLOAD]
    work()
    work()
    assert len(set(seen)) == 2


def test_c_is_a_setting(arithmetic, built):
    measuring.start_c(arithmetic, {}, True)[measuring.WORKLOAD]()


def test_the_folder_of_builds_holds_the_library(built):
    assert built == library(convert.build_folder())


def test_an_unknown_model_is_an_error():
    with pytest.raises(ValueError, match="no model 'huge' at 'FP16'. Models: tiny, released; precisions: FP16"):
        convert.prepare("huge")
