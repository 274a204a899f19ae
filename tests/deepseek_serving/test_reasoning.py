"""Thoughts and answers are separated in the same way wherever the text is cut."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from notebooks.deepseek_serving.pipeline import Delta, ReasoningSplitter, split_reasoning

# A text of ours in the pieces that DeepSeek-R1-Distill-Qwen's tokenizer cuts it into, special tokens included.
TOKENS = json.loads((Path(__file__).parent / "deepseek_tokens.json").read_text(encoding="utf-8"))
TEXT = "".join(TOKENS)
TAGS = [
    "<think>",
    "</think>",
    "<",
    "</",
    "think",
    ">",
    "<thin",
    "</thi",
    " ",
    "\n",
    "\n\n",
    "a",
    "b <i>",
    "é",
    "</ think>",
]
texts = st.lists(st.sampled_from(TAGS), max_size=12).map("".join)


def whole(text: str, inside: bool) -> tuple[str, str]:
    """The definition, by regular expressions over the whole text."""
    if opened := re.match(r"\s*<think>", text):
        text = text[opened.end() :]
    elif not inside:
        return "", text
    parts = re.split(r"</think>", text, maxsplit=1)
    return parts[0].strip(), parts[1].lstrip() if len(parts) == 2 else ""


def fed(pieces, inside: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside)
    deltas = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(d.reasoning for d in deltas), "".join(d.answer for d in deltas)


@pytest.mark.parametrize("inside", [True, False], ids=["template opened it", "opened in the text"])
def test_the_thoughts_of_a_deepseek_text(inside):
    text = TEXT if inside else "<think>\n" + TEXT
    reasoning, answer = split_reasoning(text, inside)
    assert reasoning.startswith("Okay, the user asks") and reasoning.endswith("So 17 × 3 < 60.")
    assert answer.startswith("17 × 3 is **51**.") and answer.endswith("a `</think>` tag is only text here. 😀\n")


def test_a_deepseek_text_cut_at_every_token_gives_what_the_whole_gives():
    assert TOKENS.count("</think>") == 1, "the tag is one token of its own"
    assert fed(TOKENS, True) == whole(TEXT, True)


def test_a_deepseek_text_cut_anywhere_in_two_gives_what_the_whole_gives():
    expected = whole(TEXT, True)
    for at in range(len(TEXT) + 1):
        assert fed([TEXT[:at], TEXT[at:]], True) == expected, f"cut at {at}"
    assert fed(list(TEXT), True) == expected


@given(texts, st.booleans(), st.data())
@example("<think>a </thi", False, None)
@example(" \n<think>\n\na\n</think>\n\n b", True, None)
@example("a</think></think>", True, None)
def test_any_cut_of_any_text_gives_what_the_whole_gives(text, inside, data):
    cuts = [] if data is None else data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    ends = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    expected = whole(text, inside)
    assert fed(pieces, inside) == expected
    assert fed(list(text), inside) == expected
    assert split_reasoning(text, inside) == expected


def test_text_is_passed_on_as_soon_as_it_is_certain():
    splitter = ReasoningSplitter()
    pieces = ["<thi", "nk>", "\nHm", ". ", "1 < 2", " <", "/th", "ink>", "\n\n", "Yes", " <think>"]
    assert [splitter.feed(piece) for piece in pieces] == [
        ("", ""), ("", ""), ("Hm", ""), (".", ""), (" 1 < 2", ""), ("", ""), ("", ""), ("", ""), ("", ""),
        ("", "Yes"), ("", " <think>"),
    ]  # fmt: skip
    assert splitter.finish() == Delta("", "")


def test_a_model_that_does_not_think_aloud_is_left_alone():
    assert fed(["  Paris", " is ", "</think> nice \n"], False) == ("", "  Paris is </think> nice \n")


def test_an_answer_that_ends_while_thinking_is_all_thoughts():
    assert fed(["<think>", "Let me see", " </th"], False) == ("Let me see </th", "")
    assert fed(["Let me see \n"], True) == ("Let me see", "")
