"""The demo: a picture and questions about it, and a drawing that appears row by row as its tokens come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import gradio as gr
import numpy as np
from PIL import Image

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out, held_out_wishes
from notebooks.janus_pro.figures import token_grid
from notebooks.janus_pro.pipeline import Figures, Janus
from utils.demo import beside, picture_file

LONGEST_TEXT = 2000  # characters of a question, or of what to draw
LONGEST_ANSWER = 256  # tokens
SHOWN = 384  # pixels that a drawing is wide and high on the page, at least
SAMPLES = ("colour", "count", "relation")  # kinds of questions of which one is offered
WISHES = ("place", "several", "relation")  # and of sentences


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo."""
    with gr.Blocks(title="Janus-Pro", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Read pictures and make them\n"
            "One language model does both. (The tiny one knows drawn shapes in eight colours, as in the examples; no "
            "photos.)"
        )
        with gr.Tab("Ask"):
            _ask_tab(model, device)
        with gr.Tab("Draw"):
            _draw_tab(model, device)
    return demo


def _ask_tab(model: str, device: str) -> None:
    with gr.Row():
        with gr.Column():
            picture = picture_file(SHOWN)
        with gr.Column():
            question = gr.Textbox(label="Question", lines=2, max_length=LONGEST_TEXT)
            send = gr.Button("Ask", variant="primary")
            answer = gr.Textbox(label="Answer", lines=4, interactive=False)
            speed = gr.Textbox(label="Speed", interactive=False)
    gr.Examples(questions(), [picture, question], label="Held-out pictures and questions")

    def respond(path: str | None, asked: str) -> Iterator[tuple[str, str]]:
        try:
            yield from answering(_janus(model, device), path, asked)
        except (ValueError, OSError) as error:  # sentences of this collection; others stay tracebacks in the log
            raise gr.Error(str(error)) from error

    for event in (send.click, question.submit):
        event(respond, [picture, question], [answer, speed], api_name="ask", concurrency_id="janus")


def _draw_tab(model: str, device: str) -> None:
    with gr.Row():
        with gr.Column():
            wish = gr.Textbox(label="What to draw", lines=2, max_length=LONGEST_TEXT)
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
            guidance = gr.Slider(0, 10, lambda: _janus(model, device).guidance, step=0.1, label="Guidance")
            gr.Markdown("1 just follows the sentence, more exaggerates it, 0 does not listen to it.")
            make = gr.Button("Draw", variant="primary")
            speed = gr.Textbox(label="Speed", interactive=False)
        with gr.Column():
            options = {"interactive": False, "buttons": ["download", "fullscreen"], "format": "png", "height": SHOWN}
            shown = gr.Image(label="Drawing", **options)
            tokens = gr.Image(label="Its tokens", **options)
    gr.Examples(sentences(), [wish], label="Held-out sentences")

    def respond(asked: str, seed: float, guidance: float) -> Iterator[tuple]:
        try:
            yield from drawing(_janus(model, device), asked, seed, guidance)
        except (ValueError, OSError) as error:
            raise gr.Error(str(error)) from error

    for event in (make.click, wish.submit):
        event(respond, [wish, seed, guidance], [shown, tokens, speed], api_name="draw", concurrency_id="janus")


def answering(janus: Janus, path: str | None, asked: str) -> Iterator[tuple[str, str]]:
    """(answer so far, speed) as the answer comes.

    The model stops when the visitor leaves, which closes this generator. Raises ValueError as `Janus.understand`, for a
    question without a picture, and for one too long.
    """
    if not path:
        raise ValueError("There is no picture yet: upload one, or take an example.")
    _check_length(asked, "question")
    pieces: list[str] = []

    def work(left: threading.Event) -> None:
        janus.understand(path, asked, lambda piece: pieces.append(piece) or left.is_set(), LONGEST_ANSWER)

    with closing(beside(work, lambda: len(pieces))) as news:
        for _ in news:
            yield "".join(pieces).strip(), "answering ..."
    yield "".join(pieces).strip(), about(janus.figures)


def drawing(janus: Janus, asked: str, seed: int, guidance: float) -> Iterator[tuple[Image.Image, Image.Image, str]]:
    """(drawing so far, its tokens as colours, speed), row by row as the tokens come.

    The model stops when the visitor leaves. Raises ValueError as `Janus.draw`, and for a sentence too long.
    """
    _check_length(asked, "sentence")
    rows: list[tuple[Image.Image, Image.Image]] = []

    def hear(tokens: np.ndarray, left: threading.Event) -> None:
        if left.is_set():
            raise _Left
        if tokens.shape[1] % janus.rows == 0:
            rows.append(_shown(janus, tokens))  # here: any other thread would wait for the whole drawing

    def work(left: threading.Event) -> None:
        try:
            janus.draw_tokens(asked, int(seed), guidance, progress=lambda tokens: hear(tokens, left))
        except _Left:
            pass

    with closing(beside(work, lambda: len(rows))) as news:
        for _ in news:
            yield *rows[-1], f"row {len(rows)} of {janus.rows}"
    yield *rows[-1], about(janus.figures)


class _Left(Exception):
    """The visitor is gone."""


def _check_length(text: str, what: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"The {what} has {len(text)} characters; up to {LONGEST_TEXT} are read. Shorten it.")


def _shown(janus: Janus, tokens: np.ndarray) -> tuple[Image.Image, Image.Image]:
    """A drawing and its tokens, large enough to be looked at."""
    picture = janus.decode(tokens)[0]
    side = max(SHOWN, picture.width)
    whole = picture.resize((side, side), Image.Resampling.NEAREST)
    return whole, token_grid(tokens[0], janus.rows, janus.codes).resize((side, side), Image.Resampling.NEAREST)


def about(figures: Figures) -> str:
    """What a visitor is told about an answer or a drawing."""
    rate = figures.tokens_per_second
    speed = f"{figures.generated} token{'' if figures.generated == 1 else 's'}"
    speed += (f", {rate:.0f} tokens/s" if rate else "") + f", the first after {figures.first_token_s:.2f} s"
    if figures.ended == "length":
        speed += "; cut off at the longest answer"
    return " ".join([f"{speed}.", *figures.notes])


@cache
def questions() -> list[list]:
    """(picture, question) of one held-out trial of each kind in SAMPLES."""
    return [[picture, question.text] for kind in SAMPLES for picture, question in held_out(kind, 1)]


@cache
def sentences() -> list[list[str]]:
    """A held-out sentence of each kind in WISHES."""
    return [[wish.text] for kind in WISHES for _, wish in held_out_wishes(kind, 1)]


@cache
def _janus(model: str, device: str) -> Janus:
    return Janus(convert.prepare(model, "INT8"), device)
