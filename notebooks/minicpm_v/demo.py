"""The demo: a picture, a conversation about it as it streams, and the slices that the model reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import gradio as gr
from PIL import Image

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.data import held_out
from notebooks.minicpm_v.figures import draw_slices
from notebooks.minicpm_v.pipeline import Figures, Turn, VisionChat, open_picture
from utils.demo import beside, picture_file

LONGEST_QUESTION = 2000  # characters
LONGEST_ANSWER = 256  # tokens
SHOWN_SIDE = 1280  # pixels: larger pictures are shown smaller
HEIGHT = 360  # pixels of the pictures on the page
SAMPLES = ("label", "sign", "relation")  # kinds of questions of which one is offered


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo."""
    with gr.Blocks(title="MiniCPM-V", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Ask about a picture\n"
            "A large picture is read twice: as a whole, made small, and in slices that keep its details. Turn slicing "
            "off and ask for small words again. (The tiny model knows drawn shapes and printed capital letters, as in "
            "the examples; no photos.)"
        )
        turns = gr.State([])  # what was said so far, as `VisionChat.ask` keeps it
        asked_about = gr.State(None)  # the picture that the latest question came with
        with gr.Row():
            with gr.Column():
                picture = picture_file(HEIGHT)
                slicing = gr.Checkbox(value=True, label="Slice large pictures")
                seen = gr.Image(label="What the model reads", height=HEIGHT, interactive=False, buttons=["fullscreen"])
            with gr.Column():
                chat = gr.Chatbot(label="Conversation", height=480, buttons=["copy", "copy_all"])  # and no sharing
                question = gr.Textbox(label="Question", lines=2, max_length=LONGEST_QUESTION)
                with gr.Row():
                    send = gr.Button("Ask", variant="primary")
                    clear = gr.Button("New conversation")
                speed = gr.Textbox(label="Speed", interactive=False)
        gr.Examples(samples(), [picture, question], label="Held-out pictures and questions")

        def show(path: str | None, slicing: bool) -> tuple[Image.Image | None, str]:
            try:
                return look(path, slicing, model, device) if path else (None, "")
            except (ValueError, OSError) as error:  # sentences of this collection; others stay tracebacks in the log
                raise gr.Error(str(error)) from error

        def respond(path, asked, said, turns, about, slicing) -> Iterator[tuple]:
            new = path if path != about else None  # an earlier picture is known already
            shown = [*said, {"role": "user", "content": asked}]
            turns = list(turns)
            try:
                for answer, text in stream(_chat(model, device), new, asked, turns, slicing):
                    yield [*shown, {"role": "assistant", "content": answer}], "", turns, path, text
            except (ValueError, OSError) as error:
                raise gr.Error(str(error)) from error

        for event in (picture.change, slicing.change):
            event(show, [picture, slicing], [seen, speed], api_name="show", concurrency_id="chat")
        given = [picture, question, chat, turns, asked_about, slicing]
        told = [chat, question, turns, asked_about, speed]
        for event in (send.click, question.submit):
            event(respond, given, told, api_name="respond", concurrency_id="chat")
        clear.click(lambda: ([], "", [], None, ""), None, told, api_name=False)
    return demo


def look(path: str, slicing: bool, model: str = "tiny", device: str = "CPU") -> tuple[Image.Image, str]:
    """The picture with its slices drawn over it, at most SHOWN_SIDE pixels wide and high, and a sentence about them.

    Raises ValueError for a file that cannot be read as a picture.
    """
    image, notes = open_picture(path)
    plan = _chat(model, device).plan(image, slicing)
    (columns, rows), (width, height) = plan.grid, plan.slice
    size = f"{image.width} x {image.height} pixels, read as a whole at {plan.overview[0]} x {plan.overview[1]}"
    if columns:
        size += f" and in {columns * rows} slices of {width} x {height}"
    image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    return draw_slices(image, plan.grid), " ".join([f"{size}.", *notes])


def stream(
    chat: VisionChat, path: str | None, asked: str, turns: list[Turn], slicing: bool = True
) -> Iterator[tuple[str, str]]:
    """(answer so far, speed) as the answer comes; the turn is added to `turns` at its end.

    The model stops when the visitor leaves, which closes this generator. Raises ValueError as `VisionChat.ask`, and
    for the first question without a picture and one too long.
    """
    if not path and not turns:
        raise ValueError("There is no picture yet: upload one, or take an example.")
    if len(asked) > LONGEST_QUESTION:
        raise ValueError(f"The question has {len(asked)} characters; up to {LONGEST_QUESTION} are read. Shorten it.")
    pieces: list[str] = []

    def work(left: threading.Event) -> None:
        chat.ask(path, asked, turns, LONGEST_ANSWER, lambda piece: pieces.append(piece) or left.is_set(), slicing)

    with closing(beside(work, lambda: len(pieces))) as news:
        for _ in news:
            yield "".join(pieces), "answering ..."
    yield "".join(pieces), about(chat.figures)


def about(figures: Figures) -> str:
    """What a visitor is told about an answer."""
    rate = figures.tokens_per_second
    speed = _count(figures.generated, "token") + (f", {rate:.0f} tokens/s" if rate else "")
    speed += f", the first after {figures.first_token_s:.2f} s"
    if figures.slices:
        speed += f", of which {figures.image_s:.2f} s for {_count(figures.slices, 'piece')} of the picture"
    if figures.kept:
        speed += f"; {figures.kept} tokens of the conversation were kept"
    if figures.ended == "length":
        speed += "; cut off at the longest answer"
    return " ".join([f"{speed}.", *figures.notes])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@cache
def samples() -> list[list]:
    """(picture, question) of one held-out trial of each kind in SAMPLES."""
    return [[picture, question.text] for kind in SAMPLES for picture, question in held_out(kind, 1)]


@cache
def _chat(model: str, device: str) -> VisionChat:
    return VisionChat(convert.prepare(model, "INT8"), device)
