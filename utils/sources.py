"""Where the modules of this project live and what they import, read from their source: nothing is imported.

`used` does the same for a function in a notebook's cell, whose names it looks up among the kernel's.
"""

import ast
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

from utils.paths import ROOT


def file_of(module: str, root: Path = ROOT) -> Path | None:
    """The file of a module or package below `root`; None if there is none, as for libraries."""
    place = root.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def names(source: str, package: str) -> set[tuple[str, str]]:
    """What a source text imports, anywhere in it: ("a.b", "") for `import a.b`, ("a.b", "c") for `from a.b import c`.

    package: the absolute name of the package that relative imports begin at.
    """
    imports = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            imports |= {(module, alias.name) for alias in node.names}
    return imports


@cache
def imported(module: str, root: Path = ROOT) -> frozenset[str]:
    """The modules below `root` that a module imports. A package counts if a name is imported from its own file."""
    modules = {inner if file_of(inner, root) else base for base, inner in _dotted(_names_in(module, root))}
    return frozenset(name for name in modules - {module} if file_of(name, root))


def libraries(module: str, root: Path = ROOT) -> set[str]:
    """The top names that a module imports from elsewhere than below `root`."""
    tops = {base.partition(".")[0] for base, _ in _names_in(module, root)}
    return {top for top in tops if not file_of(top, root) and not (root / top).is_dir()}


def _names_in(module: str, root: Path) -> set[tuple[str, str]]:
    file = file_of(module, root)
    package = module if file and file.name == "__init__.py" else module.rpartition(".")[0]
    return names(file.read_text(encoding="utf-8"), package) if file else set()


def reachable(module: str, root: Path = ROOT) -> set[str]:
    """A module below `root` and all that its imports lead to there."""
    reached: set[str] = set()
    waiting = [module] if file_of(module, root) else []
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imported(name, root)
    return reached


class Used(NamedTuple):
    """What a cell's function consists of."""

    texts: dict[str, str]  # its own source and that of the cells' functions and classes that it uses, by name
    values: dict[str, object]  # JSON values and paths, by name
    modules: set[str]  # of this project


def used(function: Callable, root: Path = ROOT) -> Used:
    """What a function that is defined in a notebook's cell or in a script uses, directly or through others there.

    Comments and layout of the source do not count. Objects that are neither values, paths, modules, functions nor
    classes count with the module of their class.
    """
    found, waiting = Used({}, {}, set()), [function]
    while waiting:
        item = inspect.unwrap(waiting.pop())
        tree = ast.parse(dedent(inspect.getsource(item)))
        tree.body[0].decorator_list = []
        found.texts[item.__qualname__] = text = ast.unparse(tree)
        found.modules.update(inner if file_of(inner, root) else base for base, inner in _dotted(names(text, "")))
        variables = _free_variables(item, tree)
        while variables:
            name, value = variables.popitem()
            if isinstance(value, FunctionType | type) and not _in_file(value.__module__, root):
                if isinstance(value, type):  # its text cannot be had from a cell before Python 3.13: its members count
                    members = vars(value).items() if value.__module__ == "__main__" else ()
                    own = {x: member for x, member in members if inspect.isfunction(member) or x[:2] != "__"}
                    variables |= {f"{value.__qualname__}.{x}": member for x, member in own.items()}
                    variables |= {f"{value.__qualname__}.{x.__name__}": x for x in value.__bases__}
                elif value.__module__ == "__main__" and value.__qualname__ not in found.texts:
                    waiting.append(value)
            elif isinstance(value, Path) or _is_json(value):
                found.values[name] = value
            else:
                owner = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                found.modules.add(owner or type(value).__module__)
    found.modules.intersection_update({name for name in found.modules if _in_file(name, root)})
    return found


def _dotted(imports: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(base, f"{base}.{name}" if name else base) for base, name in imports}


def _in_file(module: str, root: Path) -> bool:
    return file_of(module, root) is not None


def _free_variables(function: FunctionType, tree: ast.Module) -> dict[str, object]:
    """The global and enclosing variables that a function reads, by name."""
    written = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}  # co_names has attributes, too
    read = written & _names_of(function.__code__)
    variables = {name: function.__globals__[name] for name in sorted(read) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return variables | {name: cell.cell_contents for name, cell in cells}


def _names_of(code: CodeType) -> set[str]:
    """The names in the code of a function and of those inside it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names_of, inner))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
