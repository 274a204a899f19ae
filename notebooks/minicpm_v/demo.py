"""The demo: one question, answered with slices of the picture and without, and what the model reads each time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import gradio as gr
from PIL import Image

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.data import held_out, small_words
from notebooks.minicpm_v.figures import POSTER, draw_slices, enlarged
from notebooks.minicpm_v.pipeline import Answer, Timings, Turn, VisionChat, open_picture
from utils.demo import picture_file, run_in_background, shown_errors

MAX_CHARACTERS = 2000  # of a question
MAX_ANSWER_TOKENS = 256
MAX_SHOWN_PX = 1280  # larger pictures are shown smaller
HEIGHT_PX = 320  # of the pictures on the page
SAMPLE_KINDS = ("sign", "relation")  # kinds of questions of which one example each is offered
COLUMNS = {True: "With slices", False: "Without slices"}  # by whether the picture is sliced


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo. They answer an example when the page opens."""
    with gr.Blocks(title="MiniCPM-V", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Ask about a picture\n"
            "The model reads a large picture as a whole, made small, and in slices that keep its details. Each "
            "question is answered twice: with the slices and without them. The model `tiny` knows drawn shapes and "
            "printed capital letters, as in the examples. It does not know photos."
        )
        about = gr.State(None)  # the picture that the latest question came with
        turns = {sliced: gr.State([]) for sliced in COLUMNS}  # the conversations so far, as `VisionChat.ask` keeps them
        with gr.Row():
            with gr.Column():
                picture = picture_file(HEIGHT_PX)
            with gr.Column():
                question = gr.Textbox(label="Question", lines=2, max_length=MAX_CHARACTERS)
                with gr.Row():
                    send = gr.Button("Ask", variant="primary")
                    clear = gr.Button("New conversation")
                gr.Examples(samples(), [picture, question], label="Pictures and questions that training never saw")
        seen, reads, chats, speeds = {}, {}, {}, {}
        with gr.Row():
            for sliced, name in COLUMNS.items():
                with gr.Column():
                    seen[sliced] = gr.Image(
                        label=name, height=HEIGHT_PX, interactive=False, buttons=["fullscreen"], elem_classes="pixels"
                    )
                    reads[sliced] = gr.Textbox(label=f"What the model reads {name.lower()}", interactive=False)
                    chats[sliced] = gr.Chatbot(label=f"Answer {name.lower()}", height=260, buttons=["copy", "copy_all"])
                    speeds[sliced] = gr.Textbox(label=f"Speed {name.lower()}", interactive=False)
        gr.HTML("<style>.pixels img {object-fit: contain; image-rendering: pixelated}</style>", padding=False)

        def show(path: str | None) -> list:
            with shown_errors():
                looks = [look(path, sliced, model, device) if path else (None, "") for sliced in COLUMNS]
            return [part for pair in looks for part in pair]

        def respond(path, text, about, *columns) -> Iterator[list]:
            """columns: the messages and the turns of each conversation, which come back with the speed."""
            new = path if path != about else None  # an earlier picture is known already
            pairs = zip(columns[::2], columns[1::2], strict=True)
            columns = {sliced: [messages, turns, ""] for sliced, (messages, turns) in zip(COLUMNS, pairs, strict=True)}
            asked = {"role": "user", "content": text}
            with shown_errors():
                for sliced, (messages, turns, _) in list(columns.items()):
                    turns = list(turns)
                    for answer, speed in stream(_chat(model, device, sliced), new, text, turns, sliced):
                        columns[sliced] = [[*messages, asked, *shown(answer, bool(speed))], turns, speed]
                        yield ["", path, *(part for column in columns.values() for part in column)]

        looks = [part for sliced in COLUMNS for part in (seen[sliced], reads[sliced])]
        picture.change(show, picture, looks, api_name="show", concurrency_id="chat")
        columns = [part for sliced in COLUMNS for part in (chats[sliced], turns[sliced])]
        outputs = [question, about]
        outputs += [part for sliced in COLUMNS for part in (chats[sliced], turns[sliced], speeds[sliced])]
        inputs = [picture, question, about, *columns]
        opened = demo.load(lambda: samples()[0], None, [picture, question], api_name=False)
        for event, name in ((send.click, "respond"), (question.submit, False), (opened.then, False)):
            event(respond, inputs, outputs, api_name=name, concurrency_id="chat")
        clear.click(lambda: ["", None, *([], [], "") * len(COLUMNS)], None, outputs, api_name=False)
    return demo


def look(path: str, slicing: bool, model: str = "tiny", device: str = "CPU") -> tuple[Image.Image, str]:
    """What the model reads of a picture, and a sentence about it.

    With slicing, it is the picture with the cuts drawn over it; without, it is the overview, enlarged so that its
    pixels can be seen. Both are at most MAX_SHOWN_PX pixels wide and high. Raises ValueError for a file that cannot be
    read as a picture.
    """
    image, notes = open_picture(path)
    plan = _chat(model, device, slicing).plan(image, slicing)
    (columns, rows), (width, height) = plan.grid, plan.slice
    whole = f"the whole at {plan.overview[0]} x {plan.overview[1]} pixels"
    if not slicing:
        seen = enlarged(image.resize(plan.overview, Image.Resampling.BICUBIC), HEIGHT_PX)
        return seen, " ".join([f"Only {whole}.", *notes])
    slices = f" and {columns * rows} slices of {width} x {height}" if columns else ", which needs no slices"
    image.thumbnail((MAX_SHOWN_PX, MAX_SHOWN_PX))
    return draw_slices(image, plan.grid), " ".join([f"{whole[0].upper()}{whole[1:]}{slices}.", *notes])


def stream(
    chat: VisionChat, path: str | None, text: str, turns: list[Turn], slicing: bool = True
) -> Iterator[tuple[Answer, str]]:
    """(answer so far, speed) as the answer comes; the turn is added to `turns` at its end. Until then speed is empty.

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
            yield Answer("".join(pieces), chat.answer_separator), ""
    yield Answer("".join(pieces), chat.answer_separator), about(chat.timings)


def shown(answer: Answer, complete: bool) -> list[dict]:
    """The messages of an answer on the page: the answer, and below it the reasoning, folded. While the answer comes,
    all of the text."""
    if not complete:
        return [{"role": "assistant", "content": answer.text}]
    messages = [{"role": "assistant", "content": answer.answer}]
    if answer.reasoning:
        folded = {"title": "Reasoning", "status": "done"}
        messages.append({"role": "assistant", "content": answer.reasoning, "metadata": folded})
    return messages


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
    """(picture, question) of held-out trials: the picture of the README first, then one of each of SAMPLE_KINDS."""
    picture, questions = small_words(POSTER)
    others = [[image, question.text] for kind in SAMPLE_KINDS for image, question in held_out(kind, 1)]
    return [[picture, questions[0].text], *others]


@cache
def _chat(model: str, device: str, slicing: bool) -> VisionChat:
    """One for each column of the page, so that both conversations stay in a KV cache of their own."""
    return VisionChat(convert.prepare(model, "INT8"), device)
