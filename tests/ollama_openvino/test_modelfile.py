"""Modelfiles: the published example, strictness with line numbers, and a writer that is the reader's inverse."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebooks.ollama_openvino.pipeline import Modelfile, ModelfileError, parse, read, write
from notebooks.ollama_openvino.pipeline.modelfile import LISTS, ROLES, TYPES

# README of openvino_contrib/modules/ollama_openvino (Apache-2.0), word for word
PUBLISHED = """\
    FROM  DeepSeek-R1-Distill-Qwen-7B-int4-ov.tar.gz
    ModelType "OpenVINO"
    InferDevice "NPU"
    PARAMETER stop ""
    PARAMETER stop "```"
    PARAMETER stop "</User|>"
    PARAMETER stop "<|end_of_sentence|>"
    PARAMETER stop "</｜"
    PARAMETER max_new_token 4096
    PARAMETER stop_id 151643
    PARAMETER stop_id 151647
    PARAMETER repeat_penalty 1.5
    PARAMETER top_p 0.95
    PARAMETER top_k 50
    PARAMETER temperature 0.8
"""
EXPECTED = Modelfile(
    base="DeepSeek-R1-Distill-Qwen-7B-int4-ov.tar.gz",
    model_type="OpenVINO",
    device="NPU",
    parameters={
        "stop": ["", "```", "</User|>", "<|end_of_sentence|>", "</｜"],
        "max_new_token": 4096,
        "stop_id": [151643, 151647],
        "repeat_penalty": 1.5,
        "top_p": 0.95,
        "top_k": 50,
        "temperature": 0.8,
    },
)


def test_the_published_example_is_read_as_it_is_meant():
    assert parse(PUBLISHED) == EXPECTED
    assert parse(write(EXPECTED)) == EXPECTED


@pytest.mark.parametrize(
    "data",
    [
        PUBLISHED.encode(),
        codecs.BOM_UTF8 + PUBLISHED.encode(),
        PUBLISHED.encode("utf-16"),
        codecs.BOM_UTF16_BE + PUBLISHED.encode("utf-16-be"),
        PUBLISHED.replace("\n", "\r\n").encode(),
    ],
)
def test_every_encoding_of_a_text_editor_is_read(tmp_path, data):
    (tmp_path / "Modelfile").write_bytes(data)
    assert read(tmp_path / "Modelfile") == EXPECTED


def test_comments_capitals_and_long_values():
    text = '# a comment\nfrom x.gguf\n\nSystem """You are\n"Max". # no comment\n"""\nMESSAGE user   Hello there\n'
    text += 'message assistant """Hi!"""\nPARAMETER\tuse_mmap TRUE\nLICENSE MIT\nLICENSE "Apache-2.0"'
    file = parse(text)
    assert (file.base, file.system) == ("x.gguf", 'You are\n"Max". # no comment\n')
    assert file.messages == [("user", "Hello there"), ("assistant", "Hi!")]
    assert file.parameters == {"use_mmap": True} and file.licences == ["MIT", "Apache-2.0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nFORM b", "line 2: 'FORM b' begins with no word"),
        ("FROM a\n\n# x\nhello", "line 4: 'hello' begins with no word"),
        ("FROM a\nFROM b", "line 2: FROM is there twice"),
        ("SYSTEM hi", "line 1: FROM is missing"),
        ("", "line 1: FROM is missing"),
        ("FROM a\nSYSTEM", "line 2: SYSTEM has no value"),
        ("FROM a\nPARAMETER heat 1", "line 2: there is no PARAMETER 'heat'"),
        ("FROM a\nPARAMETER top_k", "line 2: a value is missing"),
        ("FROM a\nPARAMETER top_k 1.5", "line 2: PARAMETER top_k is '1.5'; it must be of type int"),
        ("FROM a\nPARAMETER temperature nan", "line 2: PARAMETER temperature is 'nan'"),
        ("FROM a\nPARAMETER numa maybe", "it must be of type bool"),
        ("FROM a\nPARAMETER seed 1\nPARAMETER seed 2", "line 3: PARAMETER seed is there twice"),
        ('FROM a\nSYSTEM """x\ny', "line 2: the three quotes are never closed"),
        ('FROM a\nSYSTEM """x""" y', "line 2: something follows the three quotes"),
        ('FROM a\nSYSTEM "x', "line 2: the quotes of"),
        ("FROM a\nMESSAGE robot hi", "line 2: MESSAGE has the role 'robot'"),
        ("FROM a\nADAPTER b", "line 2: ADAPTER is not supported"),
        ("FROM a\nModelType GGML", "ModelType is 'GGML'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message):
    with pytest.raises(ModelfileError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "Modelfile").write_bytes(b"FROM \xff\xfe\xfa")
    with pytest.raises(ModelfileError, match="no text in UTF-8"):
        read(tmp_path / "Modelfile")
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ModelfileError, match="at most 1048576"):
        read(tmp_path / "large")


CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, max_size=40).filter(lambda text: '"""' not in text and not text.endswith('"'))
WORDS = TEXT.filter(bool)
VALUES = {
    int: st.integers(-(2**31), 2**31),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: TEXT,
}
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        name: st.lists(VALUES[kind], min_size=1, max_size=3) if name in LISTS else VALUES[kind]
        for name, kind in TYPES.items()
    },
)
FILES = st.builds(
    Modelfile,
    base=WORDS,
    model_type=st.sampled_from(["", "OpenVINO"]),
    device=TEXT,
    parameters=PARAMETERS,
    system=TEXT,
    template=TEXT,
    messages=st.lists(st.tuples(st.sampled_from(ROLES), TEXT), max_size=3),
    licences=st.lists(TEXT, max_size=2),
    requires=TEXT,
)


@given(FILES)
def test_what_is_written_is_read_again(file):
    assert parse(write(file)) == file


@given(st.text(CHARACTERS, max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        parse("FROM a\n" + text)
    except ModelfileError:
        pass


@pytest.mark.parametrize("value", ['three """ quotes', 'the end"'])
def test_a_value_that_cannot_be_written_is_refused(value):
    with pytest.raises(ModelfileError, match="a Modelfile cannot say that"):
        write(Modelfile("a", system=value))


@pytest.mark.parametrize(
    "file", [Modelfile("a", parameters={"nonsense": 3}), Modelfile("a", messages=[("robot", "hi")]), Modelfile("")]
)
def test_what_nobody_reads_is_not_written(file):
    with pytest.raises(ModelfileError):
        write(file)
