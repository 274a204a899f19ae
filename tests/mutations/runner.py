"""`python -m tests.mutations.runner GROUP REPORT`: how tests end without and with a group's mutations.

A group is a notebook's folder, whatever lies below it, or `utils`.

REPORT gets {mutation: {test: {"outcome", "exceptions"}}} as JSON; the mutation "" is none. One process does it all:
the libraries are imported once, the repository's own modules anew for every mutation. A changed source is compiled
when its module is imported; nothing on disk changes.
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

FOLDER = Path(__file__).parent
OWN = {"conftest", "notebooks", "tests", "utils"}
OPTIONS = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]


def mutations() -> dict[str, dict[str, dict[str, str]]]:
    """The mutations of the toml files by the notebook whose file they change (or "utils"), and by name."""
    found: dict[str, dict] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            top, *below = Path(one["file"]).parts
            group = below[0] if top == "notebooks" else top
            if one["name"] in found.setdefault(group, {}):
                raise ValueError(f"Two mutations of {group} are named {one['name']!r}, one of them in {path.name}.")
            found[group][one["name"]] = one
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
        self.module = mutation["file"].removesuffix(".py").removesuffix("/__init__").replace("/", ".")

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
    """A pytest plugin that keeps how each test ended and by which exceptions."""

    def __init__(self) -> None:
        self.tests: dict[str, dict] = {}

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


def run(tests: list[str], *finders: Finder) -> dict[str, dict]:
    """How the tests end with modules that the finders may change."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]
    recorder = Recorder()
    sys.meta_path[:0] = finders
    try:
        pytest.main([*OPTIONS, *tests], plugins=[recorder])
    finally:
        del sys.meta_path[: len(finders)]
    return recorder.tests


def main(group: str, report: str) -> None:
    known = mutations()[group]
    outcomes = {"": run(sorted({one["test"] for one in known.values()}))}
    for name, one in known.items():
        print(f"--- {name}", flush=True)
        outcomes[name] = run([one["test"]], Finder(one))
    Path(report).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
