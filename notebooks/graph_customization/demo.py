"""The demo: one prompt for the exported and the customized model, and the graph around the change."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from time import perf_counter

import gradio as gr
import numpy as np
import openvino as ov
import openvino_genai as genai
from matplotlib.figure import Figure

from notebooks.graph_customization import convert
from notebooks.graph_customization.figures import before_and_after
from notebooks.graph_customization.pipeline import InsertSlice, InsertWeights, SelectGreedy, customize
from utils.models.llm import TEXT, Session

MAX_PROMPT_TOKENS = 2048  # the KV cache and the waiting time grow with the prompt
WARM_UP_PROMPT = np.arange(100, 164)[None]  # [1, tokens]
CUSTOMIZATIONS = {  # precision and passes
    "Slice (FP16)": ("FP16", [InsertSlice]),
    "Slice, token chosen in the graph (FP16)": ("FP16", [InsertSlice, SelectGreedy]),
    "Slice and better weights (INT4)": ("INT4", [InsertSlice]),
}


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo. Missing IRs are converted at the first question."""
    with gr.Blocks(title="Graph customization") as demo:
        gr.Markdown(
            "# Customize a language model's graph\n"
            "The same prompt goes to the model as it was exported and to the customized one, one after the other. "
            "Long prompts show the slice best."
        )
        prompt = gr.Textbox(label="Prompt", lines=4, value="What is the capital of France?")
        with gr.Row():
            choice = gr.Radio(list(CUSTOMIZATIONS), value=next(iter(CUSTOMIZATIONS)), label="Customization")
            length = gr.Slider(8, 128, value=48, step=8, label="Longest answer, tokens")
        run = gr.Button("Compare", variant="primary")
        with gr.Row():
            answers = [gr.Textbox(label=name, lines=5) for name in ("As exported", "Customized")]
        timings = gr.Dataframe(
            headers=["", "prompt tokens", "first token, ms", "tokens/s after that"], label="Timing", interactive=False
        )
        report = gr.Textbox(label="What customize() did", lines=2)
        graph = gr.Plot(label="The graph around the output layer")
        alice = (TEXT / "evaluation.txt").read_text(encoding="utf-8")[:3500]
        gr.Examples(
            [["What is the capital of France?"], [f"Who is this about?\n\n{alice}"], ["Write a haiku about graphs."]],
            prompt,
        )

        def compare(prompt: str, choice: str, length: int) -> Iterator[tuple]:
            try:
                sent = None
                for texts, rows, text, figure in answer(prompt, choice, int(length), model, device):
                    yield *texts, rows, text, gr.skip() if figure is sent else figure
                    sent = figure  # once, not with every token
            except (ValueError, OSError) as error:  # their messages are for users; others are logged with a traceback
                raise gr.Error(str(error)) from error

        run.click(compare, [prompt, choice, length], [*answers, timings, report, graph], api_name="compare")
    return demo


def answer(prompt: str, choice: str, length: int, model: str = "tiny", device: str = "CPU") -> Iterator[tuple]:
    """Yield ((answer as exported, customized answer), timing rows, report, figure) for every token.

    Raises ValueError for an empty or too long prompt and an unknown choice.
    """
    if not prompt.strip():
        raise ValueError("The prompt is empty: type a question first.")
    if choice not in CUSTOMIZATIONS:
        raise ValueError(f"There is no customization {choice!r}. Choose one of: {', '.join(CUSTOMIZATIONS)}.")
    tokenizer, base, custom, report, figure = _models(choice, model, device)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    ids = tokenizer.encode(chat, add_special_tokens=False).input_ids.data
    if ids.shape[1] > MAX_PROMPT_TOKENS:
        raise ValueError(f"The prompt has {ids.shape[1]} tokens; the demo takes up to {MAX_PROMPT_TOKENS}. Shorten it.")
    texts, rows = ["", ""], []
    yield tuple(texts), rows, report, figure
    for side, (name, session) in enumerate((("as exported", base), ("customized", custom))):
        tokens, seconds = [], []  # only the model is timed, not the page that shows the answer
        stream = session.stream(ids, length)
        while len(tokens) < length:
            begin = perf_counter()
            token = int(next(stream)[0])
            seconds.append(perf_counter() - begin)
            if token == tokenizer.get_eos_token_id():
                break
            tokens.append(token)
            texts[side] = tokenizer.decode(tokens)
            yield tuple(texts), rows, report, figure
        speed = round((len(seconds) - 1) / sum(seconds[1:]), 1) if len(seconds) > 1 else None
        rows = [*rows, [name, ids.shape[1], round(seconds[0] * 1e3, 1), speed]]
        yield tuple(texts), rows, report, figure


@cache
def _models(choice: str, model: str, device: str) -> tuple:
    """Tokenizer, sessions of the exported and the customized model, the report, and the figure."""
    precision, kinds = CUSTOMIZATIONS[choice]
    folder = convert.prepare(model, precision)
    base = ov.Core().read_model(folder / convert.MODEL_XML)
    custom = base.clone()
    passes = [kind() for kind in kinds]
    if precision == "INT4":
        passes.append(InsertWeights(convert.better_weights(model, base)[0]))
    report = customize(custom, passes)
    lines = str(report).splitlines()
    summary = lines[:3]
    if len(lines) > 3:
        summary.append(f"... and {len(lines) - 3} more layers")
    figure: Figure = before_and_after(base, custom)
    sessions = [Session(one, device) for one in (base, custom)]
    for session in sessions:
        session.generate(WARM_UP_PROMPT, 2)  # the first inference allocates memory, which must not be timed
    return genai.Tokenizer(folder), *sessions, "\n".join(summary), figure
