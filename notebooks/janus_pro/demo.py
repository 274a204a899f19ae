"""The demo: questions about a picture, and four drawings of a prompt, which appear row by row as their tokens come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache

import gradio as gr
import numpy as np
from PIL import Image

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out, held_out_prompts
from notebooks.janus_pro.figures import framed, token_grid
from notebooks.janus_pro.pipeline import Answer, Janus, Timings
from utils.demo import picture_file, run_in_background, shown_errors

MAX_CHARACTERS = 2000  # of a question or a prompt
MAX_ANSWER_TOKENS = 256
MIN_SHOWN_PX = 288  # width and height of a drawing on the page, at least
DRAWINGS = 4  # side by side
SHOWN_STATES = 6  # of a drawing, at most about so many: each takes as long as many tokens
EXAMPLE = "Draw a red circle and a blue star."  # drawn when the page opens
FRAME_STYLE = ".drawing img, .asked img {border: 1px solid #969696}"
LARGE_STYLE = ".asked .image-frame img {height: 100%; width: auto; object-fit: contain}"  # small pictures are enlarged
ABOUT_A_DRAWING = "How many things are there?"
QUESTION_KINDS = ("relation", "count", "colour")  # of which one example each is offered
PROMPT_KINDS = ("place", "several", "relation")  # and of prompts


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which opens with an answered example in both tabs."""
    with gr.Blocks(title="Janus-Pro", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Read pictures and make them\n"
            "One language model does both. The model `tiny` knows drawn shapes in eight colours, as in the examples. "
            "It does not know photos."
        )
        with gr.Tabs() as tabs:
            with gr.Tab("Draw", id="draw"):
                draw_inputs, draw_outputs, ask_buttons, draw = _draw_tab(model, device)
            with gr.Tab("Ask", id="ask"):
                ask_inputs, ask_outputs, ask = _ask_tab(model, device)

        gr.HTML(f"<style>{FRAME_STYLE} {LARGE_STYLE}</style>", padding=False)

        def open_page() -> tuple:
            own = _janus(model, device).guidance
            slider = gr.Slider(maximum=max(3, round(2 * own)), value=own)  # 3 for tiny, 10 for the released ones
            return slider, *questions()[0]

        opened = demo.load(open_page, None, [draw_inputs[2], *ask_inputs], api_name=False)
        opened = opened.then(draw, draw_inputs, draw_outputs, api_name=False, concurrency_id="janus")
        opened.then(ask, ask_inputs, ask_outputs, api_name=False, concurrency_id="janus")

        def take(drawing: str | None) -> tuple:
            if not drawing:
                raise gr.Error("There is no drawing yet: draw one first.")
            return drawing, ABOUT_A_DRAWING, gr.Tabs(selected="ask")

        for button, drawing in zip(ask_buttons, draw_outputs, strict=False):
            taken = button.click(take, drawing, [*ask_inputs, tabs], api_name=False)
            taken.success(ask, ask_inputs, ask_outputs, api_name=False, concurrency_id="janus")
    return demo


def _ask_tab(model: str, device: str) -> tuple[list, list, Callable]:
    """Inputs and outputs of the tab, and what answers."""
    with gr.Row():
        with gr.Column(elem_classes="asked"):
            picture = picture_file(384)
        with gr.Column():
            question = gr.Textbox(label="Question", lines=2, max_length=MAX_CHARACTERS)
            send = gr.Button("Ask", variant="primary")
            answer = gr.Textbox(label="Answer", lines=2, interactive=False)
            reasoning = gr.Textbox(label="What the model wrote before it", lines=2, interactive=False)
            speed = gr.Textbox(label="Speed", interactive=False)
    gr.Examples(questions(), [picture, question], label="Held-out pictures and questions")

    def respond(path: str | None, text: str) -> Iterator[tuple[str, str, str]]:
        with shown_errors():
            yield from answering(_janus(model, device), path, text)

    inputs, outputs = [picture, question], [answer, reasoning, speed]
    for event, name in ((send.click, "ask"), (question.submit, False)):
        event(respond, inputs, outputs, api_name=name, concurrency_id="janus")
    return inputs, outputs, respond


def _draw_tab(model: str, device: str) -> tuple[list, list, list, Callable]:
    """Inputs and outputs of the tab, the buttons that ask about its drawings, and what draws."""
    with gr.Row():
        prompt = gr.Textbox(EXAMPLE, label="What to draw", lines=2, max_length=MAX_CHARACTERS, scale=3)
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, scale=1)
        guidance = gr.Slider(
            0, 10, 1, step=0.1, label="Guidance", info="1: off. More exaggerates the prompt; 0 ignores it.", scale=2
        )
    make = gr.Button("Draw", variant="primary")
    options = {"interactive": False, "buttons": ["download"], "format": "png", "type": "filepath"}
    shown, buttons = [], []
    with gr.Row():
        for number in range(1, DRAWINGS + 1):
            with gr.Column(min_width=160):
                plain = {"label": f"Drawing {number}", "show_label": False, "elem_classes": "drawing"}
                shown.append(gr.Image(**options | plain | {"buttons": []}))
                buttons.append(gr.Button("Ask about this drawing", size="sm"))
    tokens = gr.Image(label="Their tokens, each with a colour of its own", **options)
    speed = gr.Textbox(label="Speed", interactive=False)
    gr.Examples(sentences(), [prompt], label="Held-out sentences")

    def respond(text: str, seed: float, guidance: float) -> Iterator[tuple]:
        with shown_errors():
            for pictures, tokens, speed in drawing(_janus(model, device), text, seed, guidance):
                yield *pictures, tokens, speed

    inputs, outputs = [prompt, seed, guidance], [*shown, tokens, speed]
    for event, name in ((make.click, "draw"), (prompt.submit, False)):
        event(respond, inputs, outputs, api_name=name, concurrency_id="janus")
    return inputs, outputs, buttons, respond


def answering(janus: Janus, path: str | None, text: str) -> Iterator[tuple[str, str, str]]:
    """(answer, reasoning, speed) as the model writes; where it reasons first, the answer comes at the end.

    The model stops when the visitor leaves, which closes this generator. Raises ValueError as `Janus.understand`, for a
    question without a picture, and for one too long.
    """
    if not path:
        raise ValueError("There is no picture yet: upload one, or take an example.")
    _check_length(text, "question")
    pieces: list[str] = []
    found: list[Answer] = []

    def work(left: threading.Event) -> None:
        def listen(piece: str) -> bool:
            pieces.append(piece)
            return left.is_set()

        found.append(janus.understand(path, text, listen, MAX_ANSWER_TOKENS))

    with closing(run_in_background(work, lambda: len(pieces))) as updates:
        for _ in updates:
            so_far = "".join(pieces)
            yield ("", so_far, "answering ...") if janus.answer_separator else (so_far, "", "answering ...")
    yield found[0].answer, found[0].reasoning, about(janus.timings)


def drawing(
    janus: Janus, text: str, seed: int, guidance: float
) -> Iterator[tuple[list[Image.Image], Image.Image, str]]:
    """(DRAWINGS drawings so far, their tokens as colours, speed), after some rows of tokens each time.

    The model stops when the visitor leaves. Raises ValueError as `Janus.draw`, and for a sentence too long.
    """
    _check_length(text, "sentence")
    if seed is None:
        raise ValueError("The seed is empty. Give a whole number from 0 on.")
    states: list[tuple[int, list[Image.Image], Image.Image]] = []  # rows, drawings, tokens

    def on_tokens(tokens: np.ndarray, left: threading.Event) -> None:
        if left.is_set():
            raise _VisitorLeft
        row, rest = divmod(tokens.shape[1], janus.rows)
        if not rest and (row == janus.rows or row % max(1, janus.rows // SHOWN_STATES) == 0):
            states.append((row, *_shown(janus, tokens)))  # in this thread: any other would wait for the whole drawing

    def work(left: threading.Event) -> None:
        try:
            janus.draw_tokens(text, int(seed), guidance, DRAWINGS, progress=lambda tokens: on_tokens(tokens, left))
        except _VisitorLeft:
            pass

    with closing(run_in_background(work, lambda: len(states))) as updates:
        for _ in updates:
            row, *shown = states[-1]
            if row < janus.rows:  # Gradio would write the whole drawing again while the browser reads it
                yield *shown, f"row {row} of {janus.rows}"
    yield *states[-1][1:], about(janus.timings)


class _VisitorLeft(Exception):
    """The visitor has left the page."""


def _check_length(text: str, what: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The {what} has {len(text)} characters; up to {MAX_CHARACTERS} are read. Shorten it.")


def _shown(janus: Janus, tokens: np.ndarray) -> tuple[list[Image.Image], Image.Image]:
    """Drawings of tokens [n, t], enlarged without blur, and the tokens of all in one picture."""
    factor = max(1, MIN_SHOWN_PX // janus.image_size)
    side = factor * janus.image_size
    pictures = [picture.resize((side, side), Image.Resampling.NEAREST) for picture in janus.decode(tokens)]
    grids = [framed(token_grid(row, janus.rows, janus.codes), MIN_SHOWN_PX // 2) for row in tokens]
    width, gap = grids[0].width, 16
    together = Image.new("RGB", (len(grids) * (width + gap) - gap, width), "white")
    for number, grid in enumerate(grids):
        together.paste(grid, (number * (width + gap), 0))
    return pictures, together


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
