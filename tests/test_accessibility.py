"""Pages can be read by a screen reader, seen by weak eyes and used with a keyboard, as far as axe sees.

Pages of demos are examined in the tests of the demos, by the fixture `visit`. The website is examined when the variable
SITE names its folder, as in `SITE=dist/site pytest tests/test_accessibility.py` after `make site`.
"""

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import checks
from utils.paths import ROOT
from utils.setup import start_here

SITE = (ROOT / os.environ["SITE"]).resolve() if os.environ.get("SITE") else None
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html")) if SITE else []
SCHEMES = ("light", "dark")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yields the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(SITE) as address:
        yield address


def test_the_first_page_of_a_bundle(browser):
    page = browser.new_page()
    page.set_content(start_here.page("windows", "3.12", 4 * 10**9, ["movielens_1m"]))
    assert checks.axe_violations(page) == []
    page.close()


def test_controls_that_the_keyboard_does_not_reach_are_seen(browser):
    page = browser.new_page()
    trap = "onkeydown=\"if (event.key == 'Tab') event.preventDefault()\""
    page.set_content(f"<html><body><button>A</button><textarea {trap}></textarea><button>B</button></body></html>")
    assert checks.keyboard_faults(page) == ["Tab does not reach <button>B</button>"]
    page.set_content('<input type="radio" name="a"><input type="radio" name="a" checked><a href="#">C</a><a>D</a>')
    assert checks.keyboard_faults(page) == []
    page.close()


def test_faults_are_seen(browser):
    page = browser.new_page()
    page.set_content('<html><body><img src="a.png"><p style="color: #ccc">pale</p><input></body></html>')
    found = {violation.partition(":")[0] for violation in checks.axe_violations(page)}
    assert {"color-contrast", "document-title", "html-has-lang", "image-alt", "label"} <= found
    page.close()


if SITE:

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("name", PAGES)
    def test_the_website(browser, site, name, scheme):
        page = browser.new_page(color_scheme=scheme)
        page.goto(f"{site}/{name}", wait_until="load")
        assert checks.axe_violations(page) == []
        page.close()
