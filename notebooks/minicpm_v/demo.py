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
from notebooks.minicpm_v.pipeline import Timings, Turn, VisionChat, open_picture
from utils.demo import picture_file, run_in_background

MAX_CHARACTERS = 2000  # of a question
MAX_ANSWER_TOKENS = 256
MAX_SHOWN_PX = 1280  # larger pictures are shown smaller
HEIGHT_PX = 360  # of the pictures on the page
SAMPLE_KINDS = ("label", "sign", "relation")  # kinds of questions of which one example each is offered


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo."""
    with gr.Blocks(title="MiniCPM-V", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Ask about a picture\n"
            "A large picture is read twice: as a whole, made small, and in slices that keep its details. Turn slicing "
            "off and ask for small words again. (The tiny model knows drawn shapes and printed capital letters, as in "
            "the examples; no photos.)"
        )
        turns = gr.State([])  # the conversation so far, as `VisionChat.ask` keeps it
        asked_about = gr.State(None)  # the picture that the latest question came with
        with gr.Row():
            with gr.Column():
                picture = picture_file(HEIGHT_PX)
                slicing = gr.Checkbox(value=True, label="Slice large pictures")
                seen = gr.Image(
                    label="What the model reads", height=HEIGHT_PX, interactive=False, buttons=["fullscreen"]
                )
            with gr.Column():
                chat = gr.Chatbot(label="Conversation", height=480, buttons=["copy", "copy_all"])  # and no sharing
                question = gr.Textbox(label="Question", lines=2, max_length=MAX_CHARACTERS)
                with gr.Row():
                    send = gr.Button("Ask", variant="primary")
                    clear = gr.Button("New conversation")
                speed = gr.Textbox(label="Speed", interactive=False)
        gr.Examples(samples(), [picture, question], label="Held-out pictures and questions")

        def show(path: str | None, slicing: bool) -> tuple[Image.Image | None, str]:
            try:
                return look(path, slicing, model, device) if path else (None, "")
            except (
                ValueError,
                OSError,
            ) as error:  # messages of this collection; other errors stay tracebacks in the log
                raise gr.Error(str(error)) from error

        def respond(path, text, messages, turns, about, slicing) -> Iterator[tuple]:
            new = path if path != about else None  # an earlier picture is known already
            shown = [*messages, {"role": "user", "content": text}]
            turns = list(turns)
            try:
                for answer, rate in stream(_chat(model, device), new, text, turns, slicing):
                    yield [*shown, {"role": "assistant", "content": answer}], "", turns, path, rate
            except (ValueError, OSError) as error:
                raise gr.Error(str(error)) from error

        for event in (picture.change, slicing.change):
            event(show, [picture, slicing], [seen, speed], api_name="show", concurrency_id="chat")
        inputs = [picture, question, chat, turns, asked_about, slicing]
        outputs = [chat, question, turns, asked_about, speed]
        for event in (send.click, question.submit):
            event(respond, inputs, outputs, api_name="respond", concurrency_id="chat")
        clear.click(lambda: ([], "", [], None, ""), None, outputs, api_name=False)
    return demo


def look(path: str, slicing: bool, model: str = "tiny", device: str = "CPU") -> tuple[Image.Image, str]:
    """The picture with its slices drawn over it, at most MAX_SHOWN_PX pixels wide and high, and a sentence about them.

    Raises ValueError for a file that cannot be read as a picture.
    """
    image, notes = open_picture(path)
    plan = _chat(model, device).plan(image, slicing)
    (columns, rows), (width, height) = plan.grid, plan.slice
    size = f"{image.width} x {image.height} pixels, read as a whole at {plan.overview[0]} x {plan.overview[1]}"
    if columns:
        size += f" and in {columns * rows} slices of {width} x {height}"
    image.thumbnail((MAX_SHOWN_PX, MAX_SHOWN_PX))
    return draw_slices(image, plan.grid), " ".join([f"{size}.", *notes])


def stream(
    chat: VisionChat, path: str | None, text: str, turns: list[Turn], slicing: bool = True
) -> Iterator[tuple[str, str]]:
    """(answer so far, speed) as the answer comes; the turn is added to `turns` at its end.

    The model stops when the visitor leaves, which closes this generator. Raises ValueError as `VisionChat.ask`, and
    for the first question without a picture and one too long.
    """
    if not path and not turns:
        raise ValueError("There is no picture yet: upload one, or take an example.")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The question has {len(text)} characters; up to {MAX_CHARACTERS} are read. Shorten it.")
    pieces: list[str] = []

    def work(left: threading.Event) -> None:
        chat.ask(path, text, turns, MAX_ANSWER_TOKENS, lambda piece: pieces.append(piece) or left.is_set(), slicing)

    with closing(run_in_background(work, lambda: len(pieces))) as updates:
        for _ in updates:
            yield "".join(pieces), "answering ..."
    yield "".join(pieces), about(chat.timings)


def about(timings: Timings) -> str:
    """A line about the speed of an answer."""
    rate = timings.tokens_per_second
    speed = _count(timings.generated_tokens, "token") + (f", {rate:.0f} tokens/s" if rate else "")
    speed += f", the first after {timings.first_token_s:.2f} s"
    if timings.slices:
        speed += f", of which {timings.image_s:.2f} s for {_count(timings.slices, 'piece')} of the picture"
    if timings.cached_tokens:
        speed += f"; {timings.cached_tokens} tokens of the conversation were kept"
    if timings.finish_reason == "length":
        speed += "; cut off at the longest answer"
    return " ".join([f"{speed}.", *timings.notes])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@cache
def samples() -> list[list]:
    """(picture, question) of one held-out trial of each kind in SAMPLE_KINDS."""
    return [[picture, question.text] for kind in SAMPLE_KINDS for picture, question in held_out(kind, 1)]


@cache
def _chat(model: str, device: str) -> VisionChat:
    return VisionChat(convert.prepare(model, "INT8"), device)
