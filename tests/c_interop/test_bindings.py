"""Declarations in other languages: those that are committed are those of the header."""

import ctypes

import pytest

from notebooks.c_interop.convert import bindings
from notebooks.c_interop.pipeline import declarations
from notebooks.c_interop.pipeline.build import source

HEADER = bindings.parse(source("llm.h"))
REMEDY = "Run `python -m notebooks.c_interop.convert.bindings`."


@pytest.mark.parametrize("file", bindings.generated(), ids=lambda file: file.name)
def test_committed_declarations_are_those_of_the_header(file):
    assert file.read_text(encoding="utf-8") == bindings.generated()[file], REMEDY


def test_the_header_has_everything_and_nothing_variadic():
    assert list(HEADER.functions) == [
        "llm_open", "llm_generate", "llm_cancel", "llm_close", "llm_last_error", "llm_version",
    ]  # fmt: skip
    assert HEADER.constants["LLM_VERSION"] == HEADER.constants["LLM_BAD_ARGUMENT"] == 1
    assert HEADER.functions["llm_version"] == ("uint32_t", [])
    assert HEADER.functions["llm_last_error"] == ("size_t", [("char*", "buffer"), ("size_t", "size")])
    assert ("const char* const*", "properties") in HEADER.functions["llm_open"][1]
    assert HEADER.callbacks["llm_callback"][1] == [("const char*", "text"), ("size_t", "size"), ("void*", "user")]


def test_a_change_of_the_header_is_seen():
    changed = bindings.parse(source("llm.h").replace("uint32_t ignore_end", "uint64_t ignore_end"))
    for write in bindings.WRITERS.values():
        assert write(changed) != write(HEADER)


def test_an_unknown_type_is_a_sentence():
    header = bindings.parse("typedef float odd; odd f(odd x);")
    with pytest.raises(ValueError, match="uses the type 'odd'. Add it to TYPES"):
        bindings.python(header)


def test_the_structure_has_no_hidden_bytes():
    """Its fields are ordered so that no compiler of any language puts bytes between them."""
    sizes = [ctypes.sizeof(kind) for _, kind in declarations.llm_result._fields_]
    assert ctypes.sizeof(declarations.llm_result) == sum(sizes) == 64
