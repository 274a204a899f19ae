"""`python -m tests.mutations.runner GROUP REPORT [SECONDS]`: how tests end without and with a group's mutations.

A group is a notebook's folder, whatever lies below it, or `utils`. No mutation begins after SECONDS.

REPORT gets {mutation: {test: {"outcome", "exceptions"}}} as JSON; the mutation "" is none. One process does it all:
it imports the libraries once, and the repository's own modules again for every mutation. A changed source is compiled
when its module is imported; nothing on disk changes.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from time import perf_counter
from types import CodeType

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
DAY_S = 24 * 60 * 60
OWN = {"conftest", "notebooks", "tests", "utils"}
OPTIONS = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]


def mutations() -> dict[str, dict[str, dict[str, str]]]:
    """The mutations of the toml files by the notebook whose file they change (or "utils"), and by name."""
    found: dict[str, dict] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            group = group_of(one["file"])
            if one["name"] in found.setdefault(group, {}):
                raise ValueError(f"Two mutations of {group} are named {one['name']!r}, one of them in {path.name}.")
            found[group][one["name"]] = one | {"listed": path.relative_to(ROOT).as_posix()}
    return found


def group_of(file: str) -> str:
    """The notebook whose folder, or whose folder of tests, a file lies in; "utils"; or another folder's name."""
    top, *below = Path(file).parts
    return below[0] if top in ("notebooks", "tests") else top


def changed_files(root: Path = ROOT) -> list[str]:
    """The files that were changed since the merge base with origin/main, committed or not.

    On main itself: since the last commit that is a day older than the latest one. Where there is none (a new or a
    shallow clone), these are all files. Raises ValueError outside a clone.
    """
    latest = _git(root, "rev-parse", "HEAD")
    if not latest:
        raise ValueError(f"{root} is no git clone with a commit, so nothing says what changed: name a notebook.")
    base = _git(root, "merge-base", "HEAD", "origin/main")
    if base in ("", latest):
        before = int(_git(root, "show", "-s", "--format=%ct", "HEAD")) - DAY_S
        base = _git(root, "rev-list", "-1", f"--before={before}", "HEAD")
    if not base:
        return _git(root, "ls-files").splitlines()
    return _git(root, "diff", "--name-only", base).splitlines()


def _git(root: Path, *arguments: str) -> str:
    """What git prints, "" if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, encoding="utf-8")
    return done.stdout.strip() if done.returncode == 0 else ""


def groups(chosen: str, known: dict[str, dict]) -> set[str]:
    """The groups that `chosen` names: "all", "changed", one group, or "" for none. `known` is as `mutations` returns.

    A group counts as changed with its sources, its tests, and the toml files of its mutations. Raises ValueError for
    a name that has no mutations.
    """
    if chosen == "changed":
        changed = set(changed_files())
        folders = {group_of(file) for file in changed}
        listed = {group for group, own in known.items() if changed & {one["listed"] for one in own.values()}}
        return known.keys() & (folders | listed)
    if chosen not in ("", "all", *known):
        raise ValueError(f"There are no mutations of {chosen!r}. There are: all, changed, {', '.join(sorted(known))}.")
    return {group for group in known if chosen in ("all", group)}


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


def main(group: str, report: str, seconds: str = "inf") -> None:
    begin = perf_counter()
    known = mutations()[group]
    outcomes = {"": run(sorted({one["test"] for one in known.values()}))}
    for name, one in known.items():
        if perf_counter() - begin > float(seconds):
            break
        print(f"--- {name}", flush=True)
        outcomes[name] = run([one["test"]], Finder(one))
    Path(report).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
