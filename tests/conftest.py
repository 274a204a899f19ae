"""Fixtures for all tests."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import checks
from utils import demo
from utils.setup import browser

LOADING = "p.loading"  # Gradio's sentence in place of a page, which it keeps for a moment above the page


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


@pytest.fixture(params=["GPU", "NPU", "AUTO"])
def device(request, monkeypatch) -> Iterator[str]:
    """A device of a machine that has all kinds. What is compiled for it runs on the CPU here.

    At the end of the test, models must have been compiled for it and for no other device, without properties that only
    the CPU takes.
    """
    import openvino as ov

    asked = []

    class Core(ov.Core):
        available_devices = ["CPU", "GPU", "NPU"]

        def compile_model(self, model, device_name=None, config=None):
            asked.append(device_name)
            of_the_cpu = [name for name in config or {} if name.startswith(("CPU_", "SNIPPETS_"))]
            assert not of_the_cpu, f"{device_name} does not take {', '.join(of_the_cpu)}"
            return super().compile_model(model, "CPU", config or {})

    monkeypatch.setattr(ov, "Core", Core)
    yield request.param
    assert set(asked) == {request.param}


@pytest.fixture
def visit(chromium, tmp_path):
    """`with visit(address) as page`: a visitor's page of a demo, which must ask nobody but that demo for anything.

    At the end of the block, once the page has loaded, the Tab key must reach each control, and the page must be
    accessible, as far as axe sees, where that is installed.
    """

    @contextmanager
    def visiting(address: str, height: int = 1400):
        from playwright.sync_api import expect, sync_playwright

        with sync_playwright() as playwright:
            asked = []
            opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = opened.new_page(viewport={"width": 1280, "height": height})
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            yield page
            expect(page.locator(LOADING)).to_have_count(0, timeout=180_000)
            wrong = checks.axe_violations(page) if checks.has_axe() else []
            page.screenshot(path=tmp_path / "demo.png")
            wrong += checks.keyboard_faults(page)
            opened.close()
        outside = [url for url in asked if not url.startswith((address.rstrip("/"), "data:", "blob:"))]
        assert asked and outside == []
        assert wrong == [], "\n".join(wrong)

    return visiting
