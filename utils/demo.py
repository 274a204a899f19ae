"""Shows a use case's Gradio demo on this machine only: 127.0.0.1, no public link, no analytics, bounded load.

`python -m utils.demo CASE [--port 7860]`; in a notebook `demo.start(make_demo())`.
"""

import argparse
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.paths import ROOT

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when a page is made, so before make_demo() runs
HOST = "127.0.0.1"
MAX_UPLOAD = "20mb"
MAX_WAITING = 16
UPDATE_INTERVAL_S = 0.05  # between two updates of the page
DARKER = {  # Gradio's colours that are too pale on white, or too pale for white text on them
    "body_text_color_subdued": "*neutral_600",
    "input_placeholder_color": "*neutral_600",
    "button_primary_background_fill": "*primary_700",
    "button_primary_background_fill_hover": "*primary_800",
    "button_cancel_background_fill": "#b91c1c",
    "button_cancel_background_fill_hover": "#991b1b",
}
PALE = ".cm-gutterElement, time, .playback"  # numbers of lines and of a player, which have colours of their own


def cases(notebooks: Path = ROOT / "notebooks") -> list[str]:
    """The use cases that have a demo."""
    return sorted(path.parent.name for path in notebooks.glob("*/demo.py"))


def load(case: str, notebooks: Path = ROOT / "notebooks"):
    """The Blocks that `notebooks.<case>.demo.make_demo()` makes. Raises ValueError for an unknown case."""
    if case not in cases(notebooks):
        raise ValueError(f"There is no demo of {case!r}. There are: {', '.join(cases(notebooks)) or 'none'}.")
    return importlib.import_module(f"{notebooks.name}.{case}.demo").make_demo()


def queue_options() -> dict:
    """Arguments for `Blocks.queue`: one request computes, a few wait, more are refused with a message."""
    return {"max_size": MAX_WAITING, "default_concurrency_limit": 1}


def launch_options(port: int | None = None) -> dict:
    """Arguments for `Blocks.launch`: this machine only, nothing reported or recorded, small uploads, readable colours.

    Without a port Gradio takes the first free one from 7860 on. The visitor sees the messages of exceptions.
    """
    import gradio as gr

    return {
        "theme": gr.themes.Default().set(**DARKER),
        "css": f"{PALE} {{ color: var(--body-text-color-subdued) !important }}",
        "server_name": HOST,
        "server_port": port,
        "share": False,
        "max_file_size": MAX_UPLOAD,
        "show_error": True,
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "ssr_mode": False,
        "pwa": False,
        "quiet": True,
        "inline": False,
    }


def start(blocks, port: int | None = None) -> str:
    """Serve a page in the background and return its address.

    A notebook does not embed it: a saved notebook would show a dead frame. Raises OSError when the port is taken.
    """
    _reach_loopback_directly()
    blocks.queue(**queue_options())
    try:
        address = _launch(blocks, {"prevent_thread_lock": True, **launch_options(port)})
    except OSError as error:
        taken = f"Port {port} is taken" if port else "No port from 7860 on is free"
        raise OSError(f"{taken}. Close the demo that uses it, or choose another with --port.") from error
    return address


def _launch(blocks, options: dict) -> str:
    """The address of the launched page. Gradio waits 3 s for it; a busy machine may need longer, but only once."""
    try:
        return blocks.launch(**options)[1]
    except ValueError:
        if not blocks.is_running:
            raise
        return blocks.launch(**options)[1]


@contextmanager
def shown_errors(kinds: tuple[type[Exception], ...] = (ValueError, OSError)) -> Iterator[None]:
    """For the functions of a page: the visitor sees the messages of these exceptions, which are written for users.

    Other exceptions are logged with a traceback.
    """
    import gradio as gr

    try:
        yield
    except kinds as error:
        raise gr.Error(str(error)) from error


def picture_file(height: int):
    """A Gradio input for a picture, whose value is the path of the file that was sent, or None.

    The file can hold anything: the pipeline reports what is wrong with it.
    """
    import gradio as gr

    sources = ["upload", "webcam", "clipboard"]
    as_sent = {"type": "filepath", "image_mode": None}
    picture = gr.Image(label="Picture", height=height, sources=sources, buttons=[], **as_sent)
    # Gradio, which would open it, forgets this once an example was taken
    picture.preprocess = lambda payload: payload.path if payload else None
    return picture


def run_in_background(work: Callable[[threading.Event], None], count: Callable[[], int]) -> Iterator[None]:
    """Run `work` in a thread and yield whenever there is more to show, so that a slow page does not slow the model.

    work: gets an event, which is set when the visitor leaves and this generator is closed: it then ends early. What it
    raises is raised by the generator. count: how many pieces there are to show.
    """
    errors: list[Exception] = []
    left = threading.Event()

    def run() -> None:
        try:
            work(left)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    shown = 0
    try:
        while thread.is_alive():
            thread.join(UPDATE_INTERVAL_S)
            if count() > shown:
                shown = count()
                yield
    finally:
        left.set()
        thread.join()
    if errors:
        raise errors[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m utils.demo", description="Show a use case's demo.")
    parser.add_argument("case", help=f"one of: {', '.join(cases())}")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    options = parser.parse_args(arguments)
    try:
        blocks = load(options.case)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(f"The demo of {options.case} is at {start(blocks, options.port)} (Ctrl-C ends it)", flush=True)
        blocks.block_thread()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _reach_loopback_directly() -> None:
    """Gradio asks its own page whether it is up: that must not go through a proxy."""
    hosts = [host for host in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if host]
    if HOST not in hosts:
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join([*hosts, HOST, "localhost"])


if __name__ == "__main__":
    sys.exit(main())
