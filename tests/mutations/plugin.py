"""A pytest plugin that runs tests against a mutated module: `-p tests.mutations.plugin`.

Environment variables: MUTATION, "<name of the toml file>: <name of the mutation>" (nothing is mutated
without); MUTATION_REPORT, the file to write {test: {"outcome", "exceptions"}} to, as JSON. The changed
source is compiled when the module is imported; nothing on disk changes.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

FOLDER = Path(__file__).parent


def mutations() -> dict[str, dict[str, str]]:
    """All mutations of the toml files beside this module: name, file, old and new source, test."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            name = f"{path.stem}: {one['name']}"
            if name in found:
                raise ValueError(f"Two mutations are named {name!r}.")
            found[name] = one
    return found


class Loader(SourceFileLoader):
    """Loads a module with a piece of its source replaced."""

    def __init__(self, spec: ModuleSpec, old: str, new: str) -> None:
        super().__init__(spec.name, spec.origin)
        self.old, self.new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)  # never from __pycache__: that is the module as it is on disk
        if source.count(self.old) != 1:
            raise ImportError(f"The source to mutate occurs {source.count(self.old)} times in {self.path}.")
        return compile(source.replace(self.old, self.new), self.path, "exec")


class Finder:
    """Finds the mutated module before Python's own finders do."""

    def __init__(self, mutation: dict[str, str]) -> None:
        self.mutation = mutation
        self.module = mutation["file"].removesuffix(".py").replace("/", ".")
        if self.module in sys.modules:
            raise ImportError(f"{self.module} was imported before it could be mutated.")

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        spec.loader = Loader(spec, self.mutation["old"], self.mutation["new"])
        return spec


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, or the one that there is."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


class Recorder:
    """Writes how each test ended and by which exceptions."""

    def __init__(self, path: Path) -> None:
        self.path, self.tests = path, {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        test = self.tests.setdefault(item.nodeid, {"outcome": "passed", "exceptions": []})
        if not report.passed:
            test["outcome"] = report.outcome
            for error in leaves(call.excinfo.value):
                wrong_value = report.when == "call" and isinstance(error, AssertionError)
                test["exceptions"].append("AssertionError" if wrong_value else f"{report.when}: {error!r}")
        return report

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.tests), encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any conftest.py can import the module."""
    if name := os.environ.get("MUTATION"):
        sys.meta_path.insert(0, Finder(mutations()[name]))


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("MUTATION_REPORT"):
        config.pluginmanager.register(Recorder(Path(path)))
