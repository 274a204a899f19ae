"""The demo: two methods answer the same question side by side, with their memory, speed and accepted guesses."""

from __future__ import annotations

import gradio as gr

from notebooks.llm_methods import convert
from notebooks.llm_methods.measuring import decoding
from notebooks.llm_methods.pipeline import WEIGHTS, named
from utils import preflight
from utils.demo import shown_errors
from utils.tables import number

OFFERED = [method.name for method in WEIGHTS if not method.slow]
CHOOSING = ("greedy", "sampling", "repetition penalty", "prompt lookup", "speculation, fewer layers")
COLUMNS = ["", "weights, MB", "memory, MB", "first token, ms", "tokens/s", "guesses accepted"]
MAX_LETTERS = 2000
EXAMPLE = "Explain in two sentences why the sky is blue."


def answer(weights: str, choosing: str, question: str, model: str = "tiny") -> dict:
    """One method's answer: "text", and the numbers of COLUMNS; in a process of its own.

    Raises ValueError for a question that is empty or too long, and for a method that is not offered.
    """
    if not 0 < len(question.strip()) <= MAX_LETTERS:
        raise ValueError(f"The question has {len(question.strip())} letters. Write 1 to {MAX_LETTERS:,}.")
    if weights not in OFFERED or choosing not in CHOOSING:
        raise ValueError(f"{weights} with {choosing} is not offered. Choose from the lists.")
    folder = convert.prepare(model, named(weights).call, weights)
    places = {"draft": convert.draft(model)} if "speculation" in choosing else {}
    return preflight.in_child(decoding.side, named(choosing), folder, places, question.strip(), what=weights)


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens. device: the CPU is the only one."""

    def both(question: str, *chosen: str) -> tuple:
        texts, rows = [], []
        with shown_errors():
            for weights, choosing in (chosen[:2], chosen[2:]):
                given = answer(weights, choosing, question or "", model)
                fields = ("model_mb", "running_mb", "first_ms", "tokens_per_s", "accepted")
                rows.append([f"{weights}, {choosing}", *(number(given.get(field)) for field in fields)])
                texts.append(given["text"])
        return (*texts, rows)

    with gr.Blocks(title="Methods for language models") as demo:
        gr.Markdown(
            "# Two methods, side by side\n"
            "Choose how the weights are stored and how tokens are chosen. Each answer comes from a process of its own. "
            "The first use of a method compresses the model, which takes some seconds."
        )
        question = gr.Textbox(EXAMPLE, label="Question", max_length=MAX_LETTERS)
        chosen, texts = [], []
        with gr.Row():
            for which, weights, choosing in (("first", "FP16", "greedy"), ("second", "INT4 asymmetric", "greedy")):
                with gr.Column():
                    chosen.append(gr.Dropdown(OFFERED, value=weights, label=f"Weights of the {which} model"))
                    chosen.append(gr.Dropdown(list(CHOOSING), value=choosing, label=f"Tokens of the {which} model"))
                    texts.append(gr.Textbox(label=f"Answer of the {which} model", lines=6))
        run = gr.Button("Ask both", variant="primary")
        table = gr.Dataframe(headers=COLUMNS, label="Cost", interactive=False)
        one_at_a_time = {"concurrency_id": "cores", "concurrency_limit": 1}
        run.click(both, [question, *chosen], [*texts, table], api_name="ask", **one_at_a_time)
        demo.load(both, [question, *chosen], [*texts, table], api_name=False, **one_at_a_time)
    return demo
