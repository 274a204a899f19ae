"""`pytest tests/mutations --mutations=CASE` runs the mutations; without that option only the cheap tests are left."""

import pytest

from tests.mutations import runner

GROUPS = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options = "a notebook or `utils`; `all`; or `changed`: those that differ from main, on main those of the last day"
    parser.addoption("--mutations", default="", metavar="CASE", help=f"break the code and see tests fail. {options}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mutation: minutes of tests that run on broken code; needs --mutations")
    try:
        config.stash[GROUPS] = runner.groups(config.getoption("mutations", ""), runner.mutations())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if is_left_out(item, config.stash[GROUPS])]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_left_out(item: pytest.Item, chosen: set[str]) -> bool:
    """Whether a test belongs to a group that was not chosen, or takes minutes and no group was."""
    group = item.callspec.params.get("group") if hasattr(item, "callspec") else None
    if group and chosen:
        return group not in chosen
    return item.get_closest_marker("mutation") is not None
