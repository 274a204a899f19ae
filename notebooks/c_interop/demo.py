"""The demo: choose a language, and its program streams an answer, with its source next to it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import gradio as gr

from notebooks.c_interop.convert import clients, prepare
from notebooks.c_interop.measuring import chat
from utils.demo import shown_errors

TOKENS = 48
MAX_QUESTION = 500  # characters
EXAMPLE = "Why is the sky blue?"
HIGHLIGHTING = {"C": "c", "Node": "javascript"}  # of the page; it knows no better one for the others


@cache
def _tokenizer(folder: str):
    import openvino_genai as genai

    return genai.Tokenizer(folder)


def answer(language: str, question: str, model: str = "tiny") -> Iterator[tuple[str, str]]:
    """The answer so far, and at its end what the program printed after it: token ids and times.

    Raises ValueError for an empty or long question, and for a language whose tools are not here.
    """
    question = (question or "").strip()
    if not 0 < len(question) <= MAX_QUESTION:
        raise ValueError(f"The question has {len(question)} characters. Write 1 to {MAX_QUESTION}.")
    folder = prepare(model)
    prompt = chat(_tokenizer(str(folder)), question)
    for output in clients.stream(language, folder, prompt, TOKENS):
        text, _, end = output.partition("\nids: ")
        yield text, f"ids: {end.strip()}" if end else ""


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens."""

    def shown(language: str, question: str) -> Iterator[tuple[str, str]]:
        with shown_errors():
            yield from answer(language, question, model)

    def source(language: str) -> gr.Code:
        return gr.Code(clients.source_of(language), language=HIGHLIGHTING.get(language, "cpp"))

    ready = [language for language in clients.CLIENTS if not clients.missing(language)]
    with gr.Blocks(title="A language model from C") as demo:
        gr.Markdown(
            "# One C library, five languages\n"
            "Choose a language. Its program is compiled when you first ask, reads your question, and streams the "
            f"answer of the same model. Ready here: {', '.join(ready) or 'none; install a C compiler'}."
        )
        with gr.Row():
            with gr.Column():
                language = gr.Radio(list(clients.CLIENTS), value=(ready or ["C"])[0], label="Language")
                question = gr.Textbox(EXAMPLE, label="Question", max_length=MAX_QUESTION)
                ask = gr.Button("Ask", variant="primary")
                text = gr.Textbox(label="Answer", lines=6)
                ids = gr.Textbox(label="Token ids and times", lines=4)
            with gr.Column():
                code = gr.Code(clients.source_of("C"), language="c", label="The program", max_lines=32)
        one_at_a_time = {"concurrency_id": "cores", "concurrency_limit": 1}
        ask.click(shown, [language, question], [text, ids], api_name="answer", **one_at_a_time)
        language.change(source, language, code, api_name=False)
        demo.load(shown, [language, question], [text, ids], api_name=False, **one_at_a_time)
    return demo
