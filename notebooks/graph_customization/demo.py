"""The demo: one prompt for the exported and the customized model: their answers, times, memory and graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import gradio as gr
import numpy as np
import openvino as ov
import openvino_genai as genai
from matplotlib.figure import Figure

from notebooks.graph_customization import convert
from notebooks.graph_customization.figures import before_and_after, prompt_curve, race
from notebooks.graph_customization.pipeline import InsertSlice, InsertWeights, SelectGreedy, customize
from utils import report
from utils.demo import shown_errors
from utils.models.llm import TEXT, Session
from utils.tables import number

MAX_PROMPT_TOKENS = 2048  # the KV cache and the waiting time grow with the prompt
PROMPT_LENGTHS = (16, 64, 128, 256, 512, 1024, 2048)  # tokens, of the curves
FIRST_CURVE_TOKENS = 512  # of the longest prompt when the page opens
WARM_UP_PROMPT = np.arange(100, 164)[None]  # [1, tokens]
CUSTOMIZATIONS = {  # precision and passes
    "Slice (FP16)": ("FP16", [InsertSlice]),
    "Slice, token chosen in the graph (FP16)": ("FP16", [InsertSlice, SelectGreedy]),
    "Slice and better weights (INT4)": ("INT4", [InsertSlice]),
}
COLUMNS = ["", "prompt tokens", "first token, ms", "output for the prompt, MB", "tokens/s after that"]
QUESTION = "Read this text.\n\n{text}\n\nWhat is the name of the girl in this story?"
SHORT_QUESTIONS = ("What is the capital of France?", "What is the capital of Japan?", "What is the opposite of hot?")


class Pair(NamedTuple):
    """The exported model and the customized one; report: of `customize`; figure: their graphs."""

    tokenizer: genai.Tokenizer
    exported: Session
    customized: Session
    report: str
    figure: Figure


class Models:
    """The pairs of models to compare, each loaded when it is first asked for.

    folders: IR folders by precision. Those that are missing are converted. device: such as "CPU".
    """

    def __init__(self, model: str = "tiny", device: str = "CPU", folders: Mapping[str, Path] | None = None) -> None:
        self.model, self.device, self.folders = model, device, dict(folders or {})
        self._pairs: dict[str, Pair] = {}

    def load(self, choice: str) -> Pair:
        """The pair of one of CUSTOMIZATIONS. Raises ValueError for another name."""
        if choice not in CUSTOMIZATIONS:
            raise ValueError(f"There is no customization {choice!r}. Choose one of: {', '.join(CUSTOMIZATIONS)}.")
        if choice not in self._pairs:
            self._pairs[choice] = self._load(*CUSTOMIZATIONS[choice])
        return self._pairs[choice]

    def _load(self, precision: str, kinds: list[type]) -> Pair:
        folder = self.folders.get(precision) or convert.prepare(self.model, precision)
        exported = ov.Core().read_model(folder / convert.MODEL_XML)
        customized = exported.clone()
        passes = [kind() for kind in kinds]
        if precision == "INT4":
            donor = self.folders.get("INT4 scale estimation")
            passes.append(InsertWeights(convert.better_weights(self.model, exported, donor)))
        lines = str(customize(customized, passes)).splitlines()
        summary = lines[:2]
        if len(lines) > 2:
            summary.append(f"... and {len(lines) - 2} more layers. {_perplexities(self.model)}".rstrip())
        figure = before_and_after(exported, customized)
        sessions = [Session(graph, self.device) for graph in (exported, customized)]
        for session in sessions:
            session.generate(WARM_UP_PROMPT, 2)  # the first inference allocates memory, which must not be timed
        return Pair(genai.Tokenizer(folder), *sessions, "\n".join(summary), figure)


def make_demo(model: str = "tiny", device: str = "CPU", folders: Mapping[str, Path] | None = None) -> gr.Blocks:
    """The Blocks of the demo. They answer an example when the page opens. folders: as for `Models`."""
    models = Models(model, device, folders)
    with gr.Blocks(title="Graph customization") as demo:
        gr.Markdown(
            "# Customize a language model's graph\n"
            "The same prompt goes to the model as it was exported and to the customized one, one after the other. "
            "The longer the prompt, the more the slice saves."
        )
        with gr.Row():
            with gr.Column(scale=3):
                prompt = gr.Textbox(label="Prompt", lines=6, max_lines=6, value=_long_question())
            with gr.Column(scale=2):
                choice = gr.Radio(list(CUSTOMIZATIONS), value=next(iter(CUSTOMIZATIONS)), label="Customization")
                length = gr.Slider(8, 128, value=32, step=8, label="Longest answer, tokens")
        questions = [_long_question(), *SHORT_QUESTIONS]
        labels = ["A page of Alice in Wonderland: who is it about?", *SHORT_QUESTIONS]
        gr.Examples([[question] for question in questions], prompt, example_labels=labels)
        run = gr.Button("Compare", variant="primary")
        with gr.Row():
            answers = [gr.Textbox(label=name, lines=2) for name in ("As exported", "Customized")]
        bars = gr.Plot(label="First token and memory", show_label=False)
        timings = gr.Dataframe(headers=COLUMNS, label="Timing", interactive=False)
        with gr.Row():
            longest = gr.Slider(
                64, MAX_PROMPT_TOKENS, value=FIRST_CURVE_TOKENS, step=64, label="Longest prompt of the curves, tokens"
            )
            measure = gr.Button("Measure against the prompt length")
        curves = gr.Plot(label="Against the prompt length", show_label=False)
        summary = gr.Textbox(label="What customize() reports", lines=3)
        graph = gr.Plot(label="The graph around the output layer", show_label=False)

        def compare(prompt: str, choice: str, length: int) -> Iterator[tuple]:
            known = -1  # rows that the page shows; pictures are sent when they change, not with every token
            for texts, rows, text, figure in answer(prompt, choice, int(length), models):
                picture = _bars(rows) if rows and len(rows) > known else gr.skip()
                yield *texts, rows, picture, text, figure if known < 0 else gr.skip()
                known = len(rows)

        def trace(choice: str, longest: int) -> Iterator[Figure]:
            yield from curve(choice, int(longest), models)

        asked, shown = [prompt, choice, length], [*answers, timings, bars, summary, graph]
        one_at_a_time = {"concurrency_id": "models", "concurrency_limit": 1}  # both events use the same sessions
        run.click(_with_messages(compare), asked, shown, api_name="compare", **one_at_a_time)
        measure.click(_with_messages(trace), [choice, longest], curves, api_name="measure", **one_at_a_time)
        opened = demo.load(_with_messages(compare), asked, shown, api_name=False, **one_at_a_time)
        opened.then(_with_messages(trace), [choice, longest], curves, api_name=False, **one_at_a_time)
    return demo


def answer(prompt: str, choice: str, length: int, models: Models) -> Iterator[tuple]:
    """Yield ((answer as exported, customized answer), rows of COLUMNS, report, figure) for every token.

    Raises ValueError for an empty or too long prompt and an unknown choice.
    """
    if not prompt.strip():
        raise ValueError("The prompt is empty: type a question first.")
    pair = models.load(choice)
    chat = pair.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    ids = pair.tokenizer.encode(chat, add_special_tokens=False).input_ids.data  # [1, tokens]
    if ids.shape[1] > MAX_PROMPT_TOKENS:
        raise ValueError(f"The prompt has {ids.shape[1]} tokens; the demo takes up to {MAX_PROMPT_TOKENS}. Shorten it.")
    texts, rows = ["", ""], []
    yield tuple(texts), rows, pair.report, pair.figure
    for side, (name, session) in enumerate((("as exported", pair.exported), ("customized", pair.customized))):
        tokens, seconds, output_mb = [], [], 0.0  # only the model is timed, not the page that shows the answer
        stream = session.stream(ids, length)
        while len(tokens) < length:
            begin = perf_counter()
            token = int(next(stream)[0])
            seconds.append(perf_counter() - begin)
            if len(seconds) == 1:  # later outputs are of one token
                output_mb = _output_mb(session)
            if token == pair.tokenizer.get_eos_token_id():
                break
            tokens.append(token)
            texts[side] = pair.tokenizer.decode(tokens)
            yield tuple(texts), rows, pair.report, pair.figure
        speed = round((len(seconds) - 1) / sum(seconds[1:]), 1) if len(seconds) > 1 else None
        rows = [*rows, [name, ids.shape[1], round(seconds[0] * 1e3, 1), output_mb, speed]]
        yield tuple(texts), rows, pair.report, pair.figure


def curve(choice: str, longest: int, models: Models) -> Iterator[Figure]:
    """Yield the figure of first token and memory against the prompt length, again after each length up to `longest`.

    Prompts are random tokens. Each is run twice, and the faster run counts.
    """
    pair = models.load(choice)
    rng = np.random.default_rng(0)
    exported, customized = [], []
    for tokens in (*(n for n in PROMPT_LENGTHS if n < longest), longest):
        ids = rng.integers(100, 40_000, (1, tokens))
        for session, points in ((pair.exported, exported), (pair.customized, customized)):
            seconds = []
            for _ in range(2):
                begin = perf_counter()
                session.prefill(ids)
                seconds.append(perf_counter() - begin)
            points.append((tokens, min(seconds) * 1e3, _output_mb(session)))
        yield prompt_curve(exported, customized)


def _long_question() -> str:
    """A question about a page of text, of 870 tokens."""
    return QUESTION.format(text=(TEXT / "evaluation.txt").read_text(encoding="utf-8")[:3500])


def _bars(rows: list[list]) -> Figure:
    points = [(tokens, first_ms, output_mb) for _, tokens, first_ms, output_mb, _ in rows]
    return race(points[0], points[1] if len(points) > 1 else None)


def _output_mb(session: Session) -> float:
    return round(session.request.get_output_tensor(0).byte_size / 1e6, 3)


def _perplexities(model: str) -> str:
    """What better weights do for the perplexity of the INT4 model, where it was measured."""
    results = report.examination("graph_customization")
    rows = [row for row in results["quality"] if row["precision"] == "INT4" and results["model"] == model]
    values = {row["metric"]: number(row["value"]) for row in rows}
    if not values:
        return ""
    before, after = values["perplexity"], values["perplexity after InsertWeights"]
    return f"Perplexity (lower is better): {before} as exported, {after} with the better weights."


def _with_messages(function: Callable[..., Iterator]) -> Callable[..., Iterator]:
    """The same function, whose errors the visitor sees as messages."""

    def shown(*args) -> Iterator:
        with shown_errors():
            yield from function(*args)

    return shown
