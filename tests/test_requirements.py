"""requirements.txt pins exactly and says why; the lock, what is installed and what is imported agree."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from utils.setup.lock import LEFT_OUT

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
OWN = {"notebooks", "tests", "utils"}
SYSTEMS = {"linux": ("Linux", "posix"), "win32": ("Windows", "nt"), "darwin": ("Darwin", "posix")}
ENVIRONMENTS = [
    {
        "sys_platform": system,
        "platform_system": name,
        "os_name": os_name,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "python_version": version,
        "python_full_version": f"{version}.9",
        "extra": "",
    }
    for system, (name, os_name) in SYSTEMS.items()
    for machine in ("x86_64", "arm64")
    for version in ("3.11", "3.12", "3.13")
]


def parse(text: str) -> list[Requirement]:
    """The requirements in a file's text."""
    return [Requirement(line.partition(" #")[0]) for line in text.splitlines() if line and line[0] != "#"]


def version_of(requirement: Requirement) -> str | None:
    """The exact version that a requirement pins, if it does."""
    found = re.fullmatch(r"==([^,*]+)", str(requirement.specifier))
    return found and found.group(1)


def reachable(names: set[str], environments: list[dict[str, str]]) -> set[str]:
    """`names` and all that they need in one of `environments`, as the installed packages declare it."""
    extras = {canonicalize_name(x.name): x.extras for x in parse(REQUIREMENTS)}
    reached, waiting = set(), [(name, x) for name in names for x in ("", *extras.get(name, ()))]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        reached.add(name)
        try:
            declared = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # belongs to another platform, where it is a leaf as far as can be seen from here
        for needed in map(Requirement, declared):
            if needed.marker and not any(needed.marker.evaluate({**x, "extra": extra}) for x in environments):
                continue
            for new in [(canonicalize_name(needed.name), x) for x in ("", *needed.extras)]:
                if new not in seen:
                    seen.add(new)
                    waiting.append(new)
    return {name for name in reached if not LEFT_OUT.match(name)}


def disagreements(requirements: str, lock: str) -> list[str]:
    """What is wrong between the direct pins, the lock and the installed packages, as sentences."""
    direct = {canonicalize_name(x.name): version_of(x) for x in parse(requirements)}
    everywhere = {canonicalize_name(x.name) for x in parse(lock)}
    here = {canonicalize_name(x.name): version_of(x) for x in parse(lock) if not x.marker or x.marker.evaluate()}
    wrong = [
        f"{x} is {y} in requirements.txt and {here.get(x)} in the lock" for x, y in direct.items() if here.get(x) != y
    ]
    for name in sorted(reachable(set(direct), [{"extra": ""}])):
        try:
            installed = Version(importlib.metadata.version(name)).public
        except importlib.metadata.PackageNotFoundError:
            installed = "not there"
        if here.get(name) != installed:
            wrong.append(f"{name} is {installed} in the environment and {here.get(name)} in the lock")
    useless = everywhere - reachable(set(direct), ENVIRONMENTS)
    return wrong + [f"{name} is in the lock and nothing needs it" for name in sorted(useless)]


def test_direct_pins_are_exact_and_have_a_reason() -> None:
    lines = [x for x in REQUIREMENTS.splitlines() if x and not x.startswith("#")]
    bad = [x for x in lines if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[0-9][0-9A-Za-z.]*  # \S.{9,}", x)]
    assert not bad
    names = [canonicalize_name(x.name) for x in parse(REQUIREMENTS)]
    assert len(names) == len(set(names)) >= 30


def test_lock_pins_exactly_and_names_no_place() -> None:
    assert [str(x) for x in parse(LOCK) if version_of(x) is None or x.url] == []
    assert not re.search(r"://|^-|[+]cpu|^(nvidia|cuda|triton)\b", LOCK, re.MULTILINE)


def test_requirements_lock_and_environment_agree() -> None:
    assert disagreements(REQUIREMENTS, LOCK) == []


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("lock", ("numpy==", "numpy==0."), "numpy is 2.4.6 in requirements.txt and 0.2.4.6 in the lock"),
        (
            "requirements",
            ("numpy==2", "numpy==3"),
            "numpy is 3.4.6 in requirements.txt and 2.4.6 in the lock",
        ),
        ("lock", ("\nsympy==", "\n# sympy=="), "and None in the lock"),
        ("lock", ("\nsympy==", "\nsympy==9."), "sympy is 1."),
        ("lock", ("\nsympy==", "\nleft-pad==1.0\nsympy=="), "left-pad is in the lock and nothing needs it"),
    ],
)
def test_disagreements_are_seen(name, change, expected) -> None:
    changed = {"requirements": REQUIREMENTS, "lock": LOCK}
    changed[name] = changed[name].replace(*change)
    assert expected in "\n".join(disagreements(*changed.values()))


def code() -> dict[Path, str]:
    """The repository's Python: modules and the code cells of notebooks."""
    files = [x for folder in sorted(OWN) for x in (ROOT / folder).rglob("*.py") if "template" not in x.parts]
    modules = {file: file.read_text(encoding="utf-8") for file in files}
    for file in (ROOT / "notebooks").glob("*/*.ipynb"):
        cells = [x.source for x in nbformat.read(file, 4).cells if x.cell_type == "code"]
        lines = "\n".join(cells).splitlines()
        modules[file] = "\n".join("" if x.startswith(("%", "!")) else x for x in lines)
    return modules


def imported(source: str) -> set[str]:
    """The top-level names of the modules that `source` imports from outside the standard library."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {x.name.partition(".")[0] for x in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - OWN


def test_every_import_has_a_direct_pin() -> None:
    pinned = {canonicalize_name(x.name) for x in parse(REQUIREMENTS)}
    providers = importlib.metadata.packages_distributions()
    assert imported("import torch.nn, os\nfrom PIL import Image\nfrom . import x") == {"torch", "PIL"}
    missing = {}
    for file, source in code().items():
        for name in imported(source):
            beside = (file.parent / f"{name}.py").exists() or (file.parent / name / "__init__.py").exists()
            if not beside and not pinned & {canonicalize_name(x) for x in providers.get(name, [])}:
                missing.setdefault(name, []).append(str(file.relative_to(ROOT)))
    # Made on the fly by tests, or the toy packages that they install elsewhere.
    assert {x: y for x, y in missing.items() if not all(z.startswith("tests") for z in y)} == {}
