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
from notebooks.janus_pro.data import held_out, held_out_prompts
from notebooks.janus_pro.figures import token_grid
from notebooks.janus_pro.pipeline import Janus, Timings
from utils.demo import picture_file, run_in_background

MAX_CHARACTERS = 2000  # of a question or a prompt
MAX_ANSWER_TOKENS = 256
MIN_SHOWN_PX = 384  # width and height of a drawing on the page, at least
QUESTION_KINDS = ("colour", "count", "relation")  # of which one example each is offered
PROMPT_KINDS = ("place", "several", "relation")  # and of prompts


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
            picture = picture_file(MIN_SHOWN_PX)
        with gr.Column():
            question = gr.Textbox(label="Question", lines=2, max_length=MAX_CHARACTERS)
            send = gr.Button("Ask", variant="primary")
            answer = gr.Textbox(label="Answer", lines=4, interactive=False)
            speed = gr.Textbox(label="Speed", interactive=False)
    gr.Examples(questions(), [picture, question], label="Held-out pictures and questions")

    def respond(path: str | None, text: str) -> Iterator[tuple[str, str]]:
        try:
            yield from answering(_janus(model, device), path, text)
        except (ValueError, OSError) as error:  # messages of this collection; other errors stay tracebacks in the log
            raise gr.Error(str(error)) from error

    for event in (send.click, question.submit):
        event(respond, [picture, question], [answer, speed], api_name="ask", concurrency_id="janus")


def _draw_tab(model: str, device: str) -> None:
    with gr.Row():
        with gr.Column():
            prompt = gr.Textbox(label="What to draw", lines=2, max_length=MAX_CHARACTERS)
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
            guidance = gr.Slider(0, 10, lambda: _janus(model, device).guidance, step=0.1, label="Guidance")
            gr.Markdown("1 just follows the sentence, more exaggerates it, 0 does not listen to it.")
            make = gr.Button("Draw", variant="primary")
            speed = gr.Textbox(label="Speed", interactive=False)
        with gr.Column():
            options = {
                "interactive": False,
                "buttons": ["download", "fullscreen"],
                "format": "png",
                "height": MIN_SHOWN_PX,
            }
            shown = gr.Image(label="Drawing", **options)
            tokens = gr.Image(label="Its tokens", **options)
    gr.Examples(sentences(), [prompt], label="Held-out sentences")

    def respond(text: str, seed: float, guidance: float) -> Iterator[tuple]:
        try:
            yield from drawing(_janus(model, device), text, seed, guidance)
        except (ValueError, OSError) as error:
            raise gr.Error(str(error)) from error

    for event in (make.click, prompt.submit):
        event(respond, [prompt, seed, guidance], [shown, tokens, speed], api_name="draw", concurrency_id="janus")


def answering(janus: Janus, path: str | None, text: str) -> Iterator[tuple[str, str]]:
    """(answer so far, speed) as the answer comes.

    The model stops when the visitor leaves, which closes this generator. Raises ValueError as `Janus.understand`, for a
    question without a picture, and for one too long.
    """
    if not path:
        raise ValueError("There is no picture yet: upload one, or take an example.")
    _check_length(text, "question")
    pieces: list[str] = []

    def work(left: threading.Event) -> None:
        janus.understand(path, text, lambda piece: pieces.append(piece) or left.is_set(), MAX_ANSWER_TOKENS)

    with closing(run_in_background(work, lambda: len(pieces))) as updates:
        for _ in updates:
            yield "".join(pieces).strip(), "answering ..."
    yield "".join(pieces).strip(), about(janus.timings)


def drawing(janus: Janus, text: str, seed: int, guidance: float) -> Iterator[tuple[Image.Image, Image.Image, str]]:
    """(drawing so far, its tokens as colours, speed), row by row as the tokens come.

    The model stops when the visitor leaves. Raises ValueError as `Janus.draw`, and for a sentence too long.
    """
    _check_length(text, "sentence")
    rows: list[tuple[Image.Image, Image.Image]] = []

    def on_tokens(tokens: np.ndarray, left: threading.Event) -> None:
        if left.is_set():
            raise _VisitorLeft
        if tokens.shape[1] % janus.rows == 0:
            rows.append(_shown(janus, tokens))  # in this thread: any other would wait for the whole drawing

    def work(left: threading.Event) -> None:
        try:
            janus.draw_tokens(text, int(seed), guidance, progress=lambda tokens: on_tokens(tokens, left))
        except _VisitorLeft:
            pass

    with closing(run_in_background(work, lambda: len(rows))) as updates:
        for _ in updates:
            yield *rows[-1], f"row {len(rows)} of {janus.rows}"
    yield *rows[-1], about(janus.timings)


class _VisitorLeft(Exception):
    """The visitor has left the page."""


def _check_length(text: str, what: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The {what} has {len(text)} characters; up to {MAX_CHARACTERS} are read. Shorten it.")


def _shown(janus: Janus, tokens: np.ndarray) -> tuple[Image.Image, Image.Image]:
    """A drawing and its tokens, enlarged."""
    picture = janus.decode(tokens)[0]
    side = max(MIN_SHOWN_PX, picture.width)
    enlarged = picture.resize((side, side), Image.Resampling.NEAREST)
    return enlarged, token_grid(tokens[0], janus.rows, janus.codes).resize((side, side), Image.Resampling.NEAREST)


def about(timings: Timings) -> str:
    """A line about the speed of an answer or a drawing."""
    rate = timings.tokens_per_second
    speed = f"{timings.generated_tokens} token{'' if timings.generated_tokens == 1 else 's'}"
    speed += (f", {rate:.0f} tokens/s" if rate else "") + f", the first after {timings.first_token_s:.2f} s"
    if timings.finish_reason == "length":
        speed += "; cut off at the longest answer"
    return " ".join([f"{speed}.", *timings.notes])


@cache
def questions() -> list[list]:
    """(picture, question) of one held-out trial of each kind in QUESTION_KINDS."""
    return [[picture, question.text] for kind in QUESTION_KINDS for picture, question in held_out(kind, 1)]


@cache
def sentences() -> list[list[str]]:
    """A held-out prompt of each kind in PROMPT_KINDS."""
    return [[prompt.text] for kind in PROMPT_KINDS for _, prompt in held_out_prompts(kind, 1)]


@cache
def _janus(model: str, device: str) -> Janus:
    return Janus(convert.prepare(model, "INT8"), device)
