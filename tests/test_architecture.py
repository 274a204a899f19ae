"""The architecture: which module may import which, read from every module's source.

A notebook's folder answers six questions, each in a file or a folder of that name (LAYERS), and imports no other
notebook's folder. `utils` imports no notebook. `utils/setup` runs before anything is installed.
"""

import ast
import sys

import pytest

from utils import sources
from utils.paths import ROOT

MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for top in ("notebooks", "utils")
    for file in (ROOT / top).rglob("*.py")
    if "guard" not in file.parts  # runs as `sitecustomize`, not as a module of ours
)
LAYERS = (  # lowest first: a module imports those of its own layer and of lower ones
    {"pipeline", "network", "data", "server"},  # `server` is deepseek_serving's
    {"convert", "figures"},
    {"measuring"},
    {"training"},
    {"demo", "__main__"},
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
NOT_IN_A_PIPELINE = {"notebooks", "utils", "torch", "transformers"}
FIELDS_OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def case(module: str) -> str | None:
    """The notebook's folder that a module belongs to, if any."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "notebooks" else None


def question(module: str) -> str:
    """The file or folder of a notebook's folder that a module is or belongs to; "" for the folder itself."""
    return module.split(".")[2] if module.count(".") > 1 else ""


def tree(module: str) -> ast.Module:
    return ast.parse(sources.file_of(module).read_text(encoding="utf-8"))


def of(name: str) -> list[str]:
    """The modules that answer one of the questions."""
    return [module for module in MODULES if case(module) and question(module) == name]


@pytest.mark.parametrize("module", MODULES)
def test_no_notebook_imports_another(module):
    assert {case(name) for name in sources.imported(module)} <= {case(module), None}


def test_no_cycles():
    """A module that its own imports lead back to could not be read before the others."""
    assert not [
        (module, name) for module in MODULES for name in sources.imported(module) if module in sources.reachable(name)
    ]


def test_every_module_of_a_notebook_answers_a_question():
    assert not [module for module in MODULES if case(module) and question(module) not in {*LEVELS, ""}]


def test_no_layer_imports_a_higher_one():
    assert not [
        (module, name)
        for module in MODULES
        if case(module) and question(module)
        for name in sources.imported(module)
        if case(name) and LEVELS.get(question(name), 0) > LEVELS.get(question(module), len(LAYERS))
    ]


@pytest.mark.parametrize("module", of("pipeline"))
def test_a_pipeline_can_be_copied(module):
    """It imports its own modules by relative names, and of ours and of the heavy libraries nothing."""
    own = f"notebooks.{case(module)}.pipeline"
    assert all(f"{name}.".startswith(f"{own}.") for name in sources.imported(module))
    absolute = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            absolute |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            absolute.add(node.module)
    assert not {name.partition(".")[0] for name in absolute} & NOT_IN_A_PIPELINE


def test_measuring_uses_public_names():
    """What is measured must be what a reader can call."""
    private = set()
    for module in of("measuring"):
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                names = {node.attr} if owner not in ("self", "cls") else set()
            elif isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
            else:
                continue
            names = {name for name in names if name.startswith("_") and not name.endswith("__")}
            private |= {(module, name) for name in names - FIELDS_OF_TUPLES}
    assert not private


def test_utils_imports_no_notebook():
    assert not [
        (module, name) for module in MODULES if not case(module) for name in sources.imported(module) if case(name)
    ]


def test_setup_needs_the_standard_library_only():
    before_installation = {"utils.paths", "utils.files"}
    before_installation |= {module for module in MODULES if f"{module}.".startswith("utils.setup.")}
    for module in before_installation:
        assert sources.libraries(module) <= sys.stdlib_module_names, module
        assert sources.imported(module) <= before_installation, module
