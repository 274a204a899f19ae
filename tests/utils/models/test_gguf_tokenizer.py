"""The tokenizer of a GGUF file gives the ids of the tokenizer that the file was made from."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.utils.models import small_gguf as small
from tests.utils.models.small_gguf import TEXTS
from utils.models import gguf_tokenizer
from utils.models.gguf_tokenizer import CONTROL, NORMAL, USER_DEFINED, Vocabulary, build

KINDS = ("qwen2", "llama-bpe", "smollm", "gpt-2", "tekken")
texts = st.text(
    st.sampled_from("aeiouthsn AIT'’\n\r\t 0123½٣,.!?-_/(){}<|>你好天气é́ñßſ\u00a0👩👧"), max_size=30
) | st.text(max_size=20)


class Writer:
    """Collects keys as a GGUFWriter takes them."""

    def __init__(self, architecture: str = "llama") -> None:
        self.metadata = {"general.architecture": architecture}

    def __getattr__(self, name: str):
        words = {
            "token_list": "tokens",
            "token_types": "token_type",
            "token_scores": "scores",
            "token_merges": "merges",
        }
        key = name.removeprefix("add_")
        key = words.get(key, key.removeprefix("tokenizer_"))
        key = "tokenizer.chat_template" if key == "chat_template" else f"tokenizer.ggml.{key}"
        return lambda value: self.metadata.__setitem__(key.replace("pad_", "padding_"), value)


@functools.cache
def pair(pre: str):
    """The original byte-level tokenizer of a kind, and the one built from its vocabulary."""
    original, writer = small.byte_level(pre), Writer()
    small.byte_level_vocabulary(original, pre)(writer)
    return original, build(Vocabulary(writer.metadata, "file.gguf"))


@functools.cache
def sentencepiece():
    vocabulary, writer = small.sentencepiece(), Writer()
    small.sentencepiece_vocabulary(*vocabulary)(writer)
    return vocabulary, build(Vocabulary(writer.metadata, "file.gguf"))


def metadata(trained: str = "qwen2", **changes) -> dict:
    """Keys of a small file; a change to None takes a key away."""
    writer = Writer()
    small.byte_level_vocabulary(pair(trained)[0], trained)(writer)
    changed = writer.metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize("pre", KINDS)
def test_byte_level_ids_are_those_of_the_original_tokenizer(pre):
    original, built = pair(pre)
    for text in TEXTS:
        ids = built(text)["input_ids"]
        assert ids == original.encode(text).ids, text
        composed = "".join(original.decode(ids, skip_special_tokens=False))
        assert built.decode(ids) == composed


@pytest.mark.parametrize("pre", KINDS)
def test_byte_level_ids_are_those_of_the_original_tokenizer_for_any_text(pre):
    original, built = pair(pre)

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(texts)
    def compare(text):
        ids = built(text)["input_ids"]
        assert ids == original.encode(text).ids
        if pre != "qwen2":  # which composes characters
            assert built.decode(ids) == text

    compare()


def test_pieces_of_kinds_that_have_no_test_vocabulary():
    """What a text is split into, as the published tokenizers split it."""
    expected = {
        "default": ["Hello", ",", " world", "!", " ", "123", "4"],
        "starcoder": ["Hello", ",", " world", "!", " ", "1", "2", "3", "4"],
        "deepseek-r1-qwen": ["Hello", ",", " world", "!", " ", "1", "2", "3", "4"],
        "deepseek-coder": ["Hello", ",", " world", "!", " ", "1", "2", "3", "4"],
        "deepseek-llm": ["Hello", ",", " world", "!", " ", "1", "2", "3", "4"],
        "gpt-4o": ["Hello", ",", " world", "!", " ", "123", "4"],
    }
    for pre, pieces in expected.items():
        split = build(Vocabulary(metadata(pre=pre), "file.gguf")).backend_tokenizer
        found = split.pre_tokenizer.pre_tokenize_str("Hello, world! 1234")
        assert [piece.replace("Ġ", " ") for piece, _ in found] == pieces, pre


def test_sentencepiece_ids_are_those_of_its_definition():
    vocabulary, built = sentencepiece()

    words = st.lists(st.sampled_from(TEXTS[0].split()), max_size=6).map(" ".join)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given((texts | words).filter(lambda text: "<" not in text and "▁" not in text))
    def compare(text):
        ids = built(text)["input_ids"]
        assert ids[0] == 1
        assert ids[1:] == small.greedy_sentencepiece(text, *vocabulary)
        assert built.decode(ids, skip_special_tokens=True) == text

    compare()


def test_sentencepiece_writes_unknown_characters_as_bytes():
    _, built = sentencepiece()
    tokens = built.convert_ids_to_tokens(built("Alice 👩")["input_ids"])
    assert tokens[-4:] == ["<0xF0>", "<0x9F>", "<0x91>", "<0xA9>"]
    assert built.decode(built("Alice 👩")["input_ids"], skip_special_tokens=True) == "Alice 👩"


def test_sentencepiece_without_the_leading_space():
    tokens, scores, kinds = small.sentencepiece()
    writer = Writer()
    small.sentencepiece_vocabulary(tokens, scores, kinds)(writer)
    changed = writer.metadata | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    built = build(Vocabulary(changed, "file.gguf"))
    assert built.decode(built(" the")["input_ids"]) == " the"


def test_tokens_by_their_types():
    kinds = [CONTROL] * 3 + [NORMAL] * 417
    kinds[400] = USER_DEFINED
    tokens = list(metadata()["tokenizer.ggml.tokens"])
    tokens[400] = "<tool call>"
    merges = [m for m in metadata()["tokenizer.ggml.merges"] if {*m.split(" "), m.replace(" ", "")} <= {*tokens}]
    built = build(Vocabulary(metadata(tokens=tokens, token_type=kinds, merges=merges), "file.gguf"))
    ids = built("a<|im_start|><tool call>")["input_ids"]
    assert ids[1:] == [1, 400]
    assert built.decode(ids, skip_special_tokens=True) == "a<tool call>"  # a token of the user stays, a control goes


def test_special_tokens_and_the_chat_template():
    built = pair("qwen2")[1]
    assert (built.bos_token, built.eos_token, built.pad_token, built.unk_token) == (
        *small.SPECIAL[::2],
        small.SPECIAL[0],
        None,
    )
    messages = [{"role": "user", "content": "hi"}]
    assert built.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\nhi<|im_end|>\n"
    bare = Vocabulary(
        metadata(bos_token_id=None, eos_token_id=None, padding_token_id=None, add_bos_token=None, token_type=None), "f"
    )
    assert bare.special == {} and bare.ends == []
    assert build(bare).eos_token is None


@pytest.mark.parametrize(
    ("pre", "changes", "begin", "end"),
    [
        ("qwen2", {}, [], []),
        ("qwen2", {"add_bos_token": True}, [0], []),
        ("qwen2", {"add_bos_token": True, "add_eos_token": True}, [0], [2]),
        ("llama-bpe", {"add_bos_token": None}, [0], []),
        ("llama-bpe", {}, [], []),
        ("llama-bpe", {"add_bos_token": None, "bos_token_id": None}, [], []),
    ],
)
def test_tokens_at_the_beginning_and_at_the_end(pre, changes, begin, end):
    plain = pair(pre)[0].encode("hi").ids
    built = build(Vocabulary(metadata(pre, **changes), "file.gguf"))
    assert built("hi")["input_ids"] == [*begin, *plain, *end]
    assert built("hi", add_special_tokens=False)["input_ids"] == plain


def test_an_answer_ends_at_each_token_that_ends_a_turn():
    assert Vocabulary(metadata(), "f").ends == [2]
    assert Vocabulary(metadata(eot_token_id=1, eom_token_id=2), "f").ends == [2, 1]


def test_the_architecture_says_how_an_old_file_splits():
    assert build(Vocabulary(metadata(pre=None) | {"general.architecture": "qwen2"}, "f"))("hi 12")["input_ids"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "has no tokenizer.ggml.model"),
        ({"tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"merges": None}, "has no tokenizer.ggml.merges"),
        ({"model": "llama"}, "has no tokenizer.ggml.scores"),
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'. Known kinds are gpt2"),
        ({"pre": "jina-v2-code"}, "tokenizer.ggml.pre is 'jina-v2-code'. Known are: default, gpt-2, .*qwen2"),
        ({"pre": None}, "has no tokenizer.ggml.pre.*'llama' differ.*gguf_new_metadata --pre-tokenizer NAME"),
        ({"eos_token_id": 420}, "eos_token_id is 420, but there are 420 tokens.*--remove-metadata"),
        ({"padding_token_id": -1}, "padding_token_id is -1"),
        ({"add_eos_token": True, "eos_token_id": None}, "add_eos_token is true.*no tokenizer.ggml.eos_token_id"),
        ({"token_type": [1, 2]}, "token_type has 2 entries for 420 tokens"),
        ({"tokens": ["a", "b", "a"]}, "has 'a' twice"),
        ({"merges": ["a b", "zz zz"]}, "entry 0 of tokenizer.ggml.merges is 'a b'"),
        ({"merges": ["abc"]}, "entry 0 of tokenizer.ggml.merges is 'abc'"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_key(changes, message):
    with pytest.raises(ValueError, match=f"^(?s:bad.gguf.*{message})"):
        build(Vocabulary(metadata(**changes), gguf_tokenizer.Path("bad.gguf")))


def test_merges_come_in_the_order_of_scores():
    tokens = ["a", "b", "ab", "ba", "aba"]
    merges = gguf_tokenizer.merges_of_scores(tokens, [0, 0, -2, -1, -3], [NORMAL] * 5)
    assert merges == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]
    assert np.all([left + right in tokens for left, right in merges])
