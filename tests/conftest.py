"""Fixtures for all tests."""

import os

import pytest

from utils import browser


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser; without one the test is skipped by name, except in CI, where it fails."""
    found = browser.find()
    if found is None:
        sentence = f"No Chromium here: `{browser.command()}` brings it."
        pytest.fail(sentence) if os.environ.get("CI") else pytest.skip(sentence)
    return found
