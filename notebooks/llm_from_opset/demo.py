"""The demo: choose a precision for attention and one for the MLP, build the model, ask it, and look at one layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

import gradio as gr
import openvino_genai as genai
from matplotlib.figure import Figure

from notebooks.llm_from_opset import convert
from notebooks.llm_from_opset.figures import executed, first_layer, fusion
from notebooks.llm_from_opset.pipeline import PRECISIONS, Checkpoint, build
from utils.demo import shown_errors
from utils.models.llm import Session

COLUMNS = ["attention", "MLP", "to build, s", "weights, MB", "prompt tokens", "first token, ms", "tokens/s after that"]
MAX_PROMPT_TOKENS = 1024
QUESTIONS = ("What is the capital of France?", "What is the opposite of hot?", "Name three colours.")


class Built(NamedTuple):
    """A model that was built; figure: what is executed for its first layer."""

    session: Session
    seconds: float
    weights_mb: float
    figure: Figure


class Models:
    """Models of one checkpoint at chosen precisions. The last two stay in memory."""

    def __init__(self, model: str = "tiny", device: str = "CPU") -> None:
        self.device, self.group_size = device, convert.MODELS[model]["group_size"]
        self.checkpoint = convert.checkpoint_folder(model)
        self.tokenizer = genai.Tokenizer(convert.prepare(model, "INT8"))
        self.load = lru_cache(2)(self._load)

    def _load(self, attention: str, mlp: str) -> Built:
        def precision(name: str) -> str:
            return mlp if ".mlp." in name else attention if ".self_attn." in name else "INT8"

        source, begin = Checkpoint(self.checkpoint), perf_counter()
        model = build(source.config, source, precision, self.group_size)
        seconds = perf_counter() - begin
        constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
        weights_mb = sum(node.get_byte_size() for node in constants) / 1e6
        figure = fusion(executed(first_layer(self.checkpoint, precision)))
        return Built(Session(model, self.device), seconds, weights_mb, figure)


def answer(question: str, attention: str, mlp: str, length: int, models: Models) -> Iterator[tuple]:
    """Yield (answer so far, rows of COLUMNS, figure) for every token.

    Raises ValueError for an empty or too long question, and for an unknown precision.
    """
    if not question.strip():
        raise ValueError("The question is empty: type one first.")
    if unknown := {attention, mlp} - set(PRECISIONS):
        raise ValueError(f"There is no precision {unknown.pop()!r}. Choose one of: {', '.join(PRECISIONS)}.")
    chat = models.tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    ids = models.tokenizer.encode(chat, add_special_tokens=False).input_ids.data  # [1, tokens]
    if ids.shape[1] > MAX_PROMPT_TOKENS:
        raise ValueError(f"The question has {ids.shape[1]} tokens; up to {MAX_PROMPT_TOKENS} are read. Shorten it.")
    built = models.load(attention, mlp)
    rows = [[attention, mlp, round(built.seconds, 2), round(built.weights_mb), ids.shape[1], None, None]]
    tokens, seconds, stream = [], [], built.session.stream(ids, length)
    for _ in range(length):
        begin = perf_counter()
        token = int(next(stream)[0])
        seconds.append(perf_counter() - begin)  # of the model, without the page that shows the answer
        if token == models.tokenizer.get_eos_token_id():
            break
        tokens.append(token)
        rows[0][5:] = round(seconds[0] * 1e3), round(len(seconds[1:]) / sum(seconds[1:]), 1) if seconds[1:] else None
        yield models.tokenizer.decode(tokens), rows, built.figure


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo. They answer an example when the page opens."""
    models = Models(model, device)

    def shown(question: str, attention: str, mlp: str, length: float) -> Iterator[tuple]:
        sent = False
        with shown_errors():
            for text, rows, figure in answer(question, attention, mlp, int(length), models):
                yield text, rows, gr.skip() if sent else figure
                sent = True

    with gr.Blocks(title="A language model from operations") as demo:
        gr.Markdown(
            "# A language model from operations\n"
            "Choose a precision for the weights of attention and one for those of the MLP. The model is built from the "
            "checkpoint in a few seconds, answers, and you see what the processor executes for its first layer."
        )
        with gr.Row():
            question = gr.Textbox(label="Question", value=QUESTIONS[0], scale=2)
            attention = gr.Radio(list(PRECISIONS), value="INT8", label="Attention")
            mlp = gr.Radio(list(PRECISIONS), value="INT4", label="MLP")
            length = gr.Slider(8, 128, value=32, step=8, label="Longest answer, tokens")
        gr.Examples([[text] for text in QUESTIONS], question)
        run = gr.Button("Build and ask", variant="primary")
        text = gr.Textbox(label="Answer", lines=2)
        table = gr.Dataframe(headers=COLUMNS, label="Result", interactive=False)
        figure = gr.Plot(label="The first layer, before and after compilation", show_label=False)
        asked, results = [question, attention, mlp, length], [text, table, figure]
        one_at_a_time = {"concurrency_id": "models", "concurrency_limit": 1}
        run.click(shown, asked, results, api_name="ask", **one_at_a_time)
        demo.load(shown, asked, results, api_name=False, **one_at_a_time)
    return demo
