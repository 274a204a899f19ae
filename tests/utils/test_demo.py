"""The demo of a toy case, reached as a visitor reaches it."""

import os
import socket
import sys

import pytest

from utils import demo

TOY = """import gradio as gr


def double(number):
    if number < 0:
        raise ValueError("The number is negative: choose a positive one.")
    return 2 * number


def receive(file):
    return file


def make_demo():
    with gr.Blocks() as page:
        gr.Markdown("# Toy")
        number, answer, button = gr.Number(), gr.Number(), gr.Button()
        button.click(double, number, answer, api_name="double")
        page.load(lambda: 1, outputs=number, api_name=False)
        file, kept = gr.File(), gr.File()
        file.upload(receive, file, kept, api_name="receive")
    return page
"""


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A package of use cases beside the real one."""
    folder = tmp_path / "toy_notebooks" / "toy"
    folder.mkdir(parents=True)
    (folder / "demo.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    yield folder.parent
    for name in [name for name in sys.modules if name.startswith("toy_notebooks")]:
        del sys.modules[name]


@pytest.fixture
def page(notebooks):
    blocks = demo.load("toy", notebooks)
    yield blocks
    blocks.close()


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind((demo.HOST, 0))
        return listener.getsockname()[1]


def test_a_visitor_gets_an_answer_or_the_error(page, port, monkeypatch):
    from gradio_client import Client

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a dead proxy must not stand between
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("no_proxy", "intranet")
    assert demo.start(page, port) == f"http://127.0.0.1:{port}/"
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    client = Client(f"http://127.0.0.1:{port}", verbose=False)
    try:
        assert client.predict(21, api_name="/double") == 42
        with pytest.raises(Exception, match="The number is negative: choose a positive one"):
            client.predict(-1, api_name="/double")
    finally:
        client.close()


def test_a_visitor_needs_no_mouse(page, port, visit):
    from playwright.sync_api import expect

    def tab_to(name: str) -> None:
        """Go from one control to the next until the focus is on an element of that name."""
        for _ in range(20):
            opened.keyboard.press("Tab")
            if opened.evaluate("document.activeElement.tagName") == name:
                return
        raise AssertionError(f"The Tab key reaches no {name}")

    with visit(demo.start(page, port)) as opened:
        numbers = opened.locator("input[type=number]")
        expect(numbers).to_have_count(2, timeout=180_000)
        expect(numbers.first).to_have_value("1", timeout=180_000)  # from now on the page listens to its controls
        tab_to("INPUT")
        opened.keyboard.press("Control+A")
        opened.keyboard.type("21")
        tab_to("BUTTON")
        opened.keyboard.press("Enter")
        expect(numbers.nth(1)).to_have_value("42", timeout=180_000)


def test_it_is_private_and_bounded(page, port, monkeypatch):
    import httpx

    monkeypatch.setattr(demo, "MAX_UPLOAD", "1kb")
    options = demo.launch_options()  # said outright: left out, variables of the environment could decide them
    assert (options["share"], options["server_name"]) == (False, "127.0.0.1")
    address = demo.start(page, port)
    assert page.share is False and page.share_url is None and page.server_name == "127.0.0.1"
    assert page._queue.max_size == demo.MAX_WAITING
    assert all(function.concurrency_limit in (1, "default") for function in page.fns.values())
    assert page.default_config.fns and page._queue.default_concurrency_limit == 1
    with httpx.Client(trust_env=False) as client:
        small, large = (
            client.post(f"{address}gradio_api/upload", files={"files": ("a.txt", bytes(size))}) for size in (500, 5000)
        )
        assert (small.status_code, large.status_code) == (200, 413)
        assert client.get(f"{address}config").json()["analytics_enabled"] is False


def test_a_taken_port_is_an_error(page):
    with socket.socket() as listener:
        listener.bind((demo.HOST, 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"Port {taken} is taken. Close the demo"):
            demo.start(page, taken)


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_page_may_be_slow_once(page, port, monkeypatch, refusals):
    from gradio import networking

    answers = iter([False] * refusals + [True])
    monkeypatch.setattr(networking, "url_ok", lambda url: next(answers))
    if refusals == 1:
        assert demo.start(page, port) == f"http://127.0.0.1:{port}/"
    else:
        with pytest.raises(ValueError, match="localhost is not accessible"):
            demo.start(page, port)


def test_unknown_cases_are_listed(notebooks, capsys):
    with pytest.raises(ValueError, match="There is no demo of 'wav2vec'. There are: toy."):
        demo.load("wav2vec", notebooks)
    assert demo.main(["no_such_case"]) == 2
    assert "no demo of 'no_such_case'" in capsys.readouterr().err


def test_the_command_prints_the_address_and_serves_until_ended(monkeypatch, page, port, capsys):
    served = []
    monkeypatch.setattr(demo, "load", lambda case: page)
    monkeypatch.setattr(page, "block_thread", lambda: served.append(True))
    assert demo.main(["toy", "--port", str(port)]) == 0
    assert f"The demo of toy is at http://127.0.0.1:{port}/" in capsys.readouterr().out and served
    page.close()
    with socket.socket() as listener:
        listener.bind((demo.HOST, 0))
        listener.listen()
        assert demo.main(["toy", "--port", str(listener.getsockname()[1])]) == 1
    assert "is taken" in capsys.readouterr().err
