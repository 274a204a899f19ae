"""Where the modules of this project live and what they import, read from their source: nothing is imported."""

import ast
from functools import cache
from pathlib import Path

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
    named = {(base, f"{base}.{name}" if name else base) for base, name in _names_in(module, root)}
    modules = {inner if file_of(inner, root) else base for base, inner in named}
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
