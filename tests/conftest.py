"""Fixtures for all tests."""

import os
from contextlib import ExitStack, contextmanager

import pytest

from utils import demo
from utils.setup import browser


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser; without one the test is skipped by name, except in CI, where it fails."""
    found = browser.find()
    if found is None:
        sentence = f"No Chromium here: `{browser.command()}` brings it."
        pytest.fail(sentence) if os.environ.get("CI") else pytest.skip(sentence)
    return found


@pytest.fixture(scope="module")
def serve_demo():
    """A function that serves the page of a demo until the module's tests are over, and returns its address."""
    with ExitStack() as stack:

        def serve(blocks) -> str:
            stack.callback(blocks.close)
            return demo.start(blocks)

        yield serve


@pytest.fixture
def visit(chromium, tmp_path):
    """`with visit(address) as page`: a visitor's page of a demo, which must ask nobody but that demo for anything."""

    @contextmanager
    def visiting(address: str, height: int = 1400):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            asked = []
            opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = opened.new_page(viewport={"width": 1280, "height": height})
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            yield page
            page.screenshot(path=tmp_path / "demo.png")
            opened.close()
        outside = [url for url in asked if not url.startswith((address.rstrip("/"), "data:", "blob:"))]
        assert asked and outside == []

    return visiting
