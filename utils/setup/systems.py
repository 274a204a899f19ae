"""The systems that this collection runs on: how wheels name them, and which pins of the lock they need.

Standard library only.
"""

from __future__ import annotations

import ast
import operator
import platform
import sys
from dataclasses import dataclass

PYTHONS = ("3.11", "3.12", "3.13")
NEWEST_GLIBC = 36  # 2.36 is that of Debian 12
OPERATORS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class System:
    """tags: the platform tags of the wheels that a system can install; the rest: what markers of requirements ask."""

    tags: tuple[str, ...]
    sys_platform: str
    platform_machine: str
    platform_system: str
    os_name: str
    title: str


def _linux(machine: str, title: str) -> System:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux{name}_{machine}" for name in ("2014", "2010", "1")] + [f"linux_{machine}"]
    return System(tuple(tags), "linux", machine, "Linux", "posix", title)


SYSTEMS = {
    "linux": _linux("x86_64", "Linux on x86-64"),
    "linux-arm": _linux("aarch64", "Linux on ARM"),
    "macos": System(("macosx_14_0_arm64",), "darwin", "arm64", "Darwin", "posix", "macOS on Apple silicon"),
    "windows": System(("win_amd64",), "win32", "AMD64", "Windows", "nt", "Windows on x86-64"),
}


def here() -> str:
    """The name of this system in SYSTEMS, or where it is none of them, its own, such as "win32-ARM64"."""
    for name, system in SYSTEMS.items():
        if (system.sys_platform, system.platform_machine) == (sys.platform, platform.machine()):
            return name
    return f"{sys.platform}-{platform.machine()}"


def needed(lock: str, system: str, python: str) -> list[str]:
    """The pins (`name==version`) in the text of a lock that a system needs with a Python such as "3.12".

    Raises ValueError for a marker that it cannot read.
    """
    lines = [line.partition("#")[0].strip() for line in lock.splitlines()]
    split = [line.partition(";") for line in lines if line]
    return [pin.strip() for pin, _, marker in split if not marker or holds(marker.strip(), system, python)]


def holds(marker: str, system: str, python: str) -> bool:
    """Whether the marker of a requirement holds on a system with a Python such as "3.12". Raises ValueError."""
    values = {
        **vars(SYSTEMS[system]),
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    try:
        return _value(ast.parse(marker, mode="eval").body, values)
    except (SyntaxError, KeyError, AttributeError) as error:
        raise ValueError(f"The marker {marker!r} cannot be read: {error}.") from error


def _value(node: ast.expr, values: dict[str, str]) -> bool:
    """Whether an expression of a marker holds: comparisons of a variable with a text, joined by `and` and `or`."""
    if isinstance(node, ast.BoolOp):
        parts = [_value(part, values) for part in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    variable, text = node.left.id, node.comparators[0].value
    left, right = (
        map(_version, (values[variable], text)) if variable.startswith("python_") else (values[variable], text)
    )
    return OPERATORS[type(node.ops[0])](left, right)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
