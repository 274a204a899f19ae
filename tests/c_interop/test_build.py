"""Compiling: once, with a sentence where there is no compiler or it finds an error."""

import subprocess

import pytest

from notebooks.c_interop.pipeline import build
from tests.c_interop import tools


def test_without_a_compiler_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.NoCompiler, match=r"no C compiler here \(cc, gcc, clang\).*`apt install gcc libc6-dev`"):
        build.library(tmp_path)
    monkeypatch.setenv("CC", "my-compiler")
    with pytest.raises(build.NoCompiler, match=r"\(my-compiler\)"):
        build.compiler()


def test_the_library_is_built_once(monkeypatch, tmp_path):
    tools.built()
    first = build.library(tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    assert build.library(tmp_path) == first


def test_other_sources_and_versions_are_other_libraries(monkeypatch, tmp_path):
    tools.built()
    paths = {build.library(tmp_path), build.library(tmp_path, version="2025.1.0")}
    paths.add(build.library(tmp_path, build.source() + "/* changed */\n"))
    assert len(paths) == 3
    assert sorted(tmp_path.iterdir()) == sorted(path.parent for path in paths)


def test_an_error_in_the_source_is_a_sentence_and_leaves_nothing(tmp_path):
    tools.built()
    with pytest.raises(ValueError, match=r"cannot compile 0.c: 0.c:\d+:\d+: error: "):
        build.library(tmp_path, build.source() + "int x = nothing;\n")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_a_sentence():
    with pytest.raises(ValueError, match="The package no_such is not installed. Install it: `pip install no-such`."):
        build.package("no_such")
