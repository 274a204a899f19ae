"""The demo: two ranks answer, and a picture shows what each holds, computes and sends, token by token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import gradio as gr

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.figures import PARTS, colour
from notebooks.llm_distributed.pipeline.ranks import RankFailed, Ranks, Step
from utils.demo import shown_errors

QUESTION = "What is the capital of France?"
RANKS, MAX_TOKENS, MAX_CHARACTERS = 2, 64, 500


@cache
def tokenizer(model: str):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(convert.checkpoint_folder(model))


class Running:
    """Ranks that start with the first question, and again after a failure."""

    def __init__(self, model: str, device: str) -> None:
        self._model, self._device = model, device
        self._ranks: Ranks | None = None
        self._lock = threading.Lock()

    def answer(self, question: str, tokens: float) -> Iterator[tuple[str, str]]:
        """The answer so far and the picture, after each token. Raises ValueError for a question out of bounds."""
        question = (question or "").strip()
        if not question or len(question) > MAX_CHARACTERS:
            raise ValueError(f"The question has {len(question)} characters. Write 1 to {MAX_CHARACTERS}.")
        if not 1 <= (tokens or 0) <= MAX_TOKENS:
            raise ValueError(f"The number of tokens is {tokens}. Choose 1 to {MAX_TOKENS}.")
        text = tokenizer(self._model)
        chat = [{"role": "user", "content": question}]
        ids = text.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        with self._lock:
            if self._ranks is None:
                self._ranks = Ranks(convert.prepare(self._model, RANKS), device=self._device)
            steps: list[Step] = []
            try:
                for step in self._ranks.generate(ids, int(tokens), [text.eos_token_id]):
                    steps.append(step)
                    answer = text.decode([one.token for one in steps], skip_special_tokens=True)
                    yield answer, picture(self._ranks.held, steps)
            except RankFailed as error:
                self._ranks = None
                raise ValueError(f"{error} Ask again to start new ones.") from error


def picture(held: list[dict], steps: list[Step]) -> str:
    """HTML: for each rank what it holds, what it did for the latest token, and what it has sent."""
    slowest = max(max(step.ms) for step in steps[1:] or steps)
    panels = [_panel(rank, own, held, steps, slowest) for rank, own in enumerate(held)]
    return f'<div style="display:flex;gap:16px;flex-wrap:wrap">{"".join(panels)}</div>'


def _panel(rank: int, own: dict, held: list[dict], steps: list[Step], slowest: float) -> str:
    step, tint = steps[-1], colour(rank)
    rows = []
    for part, name in PARTS.items():
        total = max(other[part][1] for other in held)
        first, end = own[part]
        bar = _bar([(first / total, "#e4e8ed"), ((end - first) / total, tint), (1 - end / total, "#e4e8ed")])
        held_part = f"{first:,} to {end - 1:,}" if end - first > 1 else f"{first:,}"
        rows.append(f"<div>{name}: {held_part}</div>{bar}")
    computes, waits = step.ms[rank] - step.group_ms[rank], step.group_ms[rank]
    times = [(computes / slowest, tint), (waits / slowest, "#f0c987"), (1 - (computes + waits) / slowest, "#ffffff")]
    sent = sum(one.bytes_sent[rank] for one in steps)
    rows += [
        f"<div>latest token: computes {computes:.1f} ms, sends and waits {waits:.1f} ms</div>{_bar(times)}",
        f"<div>sent for it: {step.calls[rank]} messages, {step.bytes_sent[rank] / 1e3:,.0f} kB; "
        f"in all {sent / 1e6:.1f} MB</div>",
        f"<div>weights {own['weights_mb']:.0f} MB, keys and values {step.cache_mb[rank]:.1f} MB</div>",
    ]
    cores = ", ".join(map(str, own["cores"]))
    title = f'<div style="font-weight:600">Rank {rank}{f" on core {cores}" if cores else ""}</div>'
    look = f"flex:1;min-width:320px;border:2px solid {tint};border-radius:8px;padding:12px;line-height:1.7"
    return f'<div style="{look}">{title}{"".join(rows)}</div>'


def _bar(parts: list[tuple[float, str]]) -> str:
    """A bar of coloured parts, whose widths are shares of the whole."""
    edges = [0.0]
    for width, _ in parts:
        edges.append(min(1.0, edges[-1] + max(0.0, width)))
    pieces = [
        f'<div style="width:{100 * (end - begin):.1f}%;background:{tint}"></div>'
        for (begin, end), (_, tint) in zip(pairwise(edges), parts, strict=True)
    ]
    return f'<div style="display:flex;height:12px;border-radius:3px;overflow:hidden">{"".join(pieces)}</div>'


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens."""
    running = Running(model, device)

    def shown(question: str, tokens: float) -> Iterator[tuple[str, str]]:
        with shown_errors():
            yield from running.answer(question, tokens)

    with gr.Blocks(title="One language model on two ranks") as demo:
        gr.Markdown(
            "# One language model on two ranks\n"
            "Two processes hold a share of the model each, and answer together. For every token they add their results "
            "61 times. You see what each holds, how long it computes, and what it sends."
        )
        with gr.Row():
            question = gr.Textbox(QUESTION, label="Question", scale=4)
            tokens = gr.Number(32, label="Tokens at most", precision=0, scale=1)
            ask = gr.Button("Ask", variant="primary", scale=1)
        answer = gr.Textbox(label="Answer", lines=2)
        live = gr.HTML()
        one_at_a_time = {"concurrency_id": "ranks", "concurrency_limit": 1}
        ask.click(shown, [question, tokens], [answer, live], api_name="answer", **one_at_a_time)
        demo.load(shown, [question, tokens], [answer, live], api_name=False, **one_at_a_time)
    return demo
