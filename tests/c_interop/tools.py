"""What the tests of c_interop share: the library, and how a missing tool is reported."""

import os

import pytest

from notebooks.c_interop.convert import build_folder
from notebooks.c_interop.pipeline import NoCompiler, library

TEXT = "你好 🙂 ça va?"


def unavailable(sentence: str) -> None:
    """Skip the test, or fail it where every language must be there: `.ci/run` installs them."""
    if os.environ.get("EVERY_LANGUAGE"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def built():
    """The path of the compiled library; without a compiler the test is skipped by name."""
    try:
        return library(build_folder())
    except NoCompiler as error:
        unavailable(str(error))
