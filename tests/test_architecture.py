"""The walls of the house: who may import whom, read from every module's source.

A notebook's folder answers six questions, each in a file or a folder of that name (LAYERS), and imports no other
notebook's folder. `utils` knows no notebook; `utils/setup` runs before anything is installed.
"""

from pathlib import Path

import pytest

from utils import sources

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for top in ("notebooks", "utils")
    for file in (ROOT / top).rglob("*.py")
    if "guard" not in file.parts  # runs as `sitecustomize`, not as a module of ours
)
EXCEPTIONS = {  # importer: imported
    ("utils.setup.env", "utils.setup.bundle"),
    ("utils.setup.bundle", "utils.setup.env"),
}


def case(module: str) -> str | None:
    """The notebook's folder that a module belongs to, if any."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "notebooks" else None


@pytest.mark.parametrize("module", MODULES)
def test_no_notebook_imports_another(module):
    foreign = {case(name) for name in sources.imported(module)} - {case(module), None}
    assert not {name for name in foreign if (f"notebooks.{case(module)}", f"notebooks.{name}") not in EXCEPTIONS}


def test_no_cycles():
    """A module that its own imports lead back to could not be read before the others."""
    cycles = {
        (module, name)
        for module in MODULES
        for name in sources.imported(module)
        if module in sources.reachable(name) and (module, name) not in EXCEPTIONS
    }
    assert not cycles
