"""The demo: choose a picture that training never saw, and see what the model reads."""

from __future__ import annotations

from functools import cache

import gradio as gr
from matplotlib.figure import Figure

from notebooks.new_case import convert, data
from notebooks.new_case.figures import digits_figure
from notebooks.new_case.pipeline import DigitReader
from utils.demo import shown_errors

EXAMPLES = (0, 7, 42)


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The demo's page. It opens with the first example answered."""

    def answer(number: int | None) -> tuple[Figure, dict[str, float]]:
        with shown_errors():
            return read(number, model, device)

    with gr.Blocks(title="Digits") as demo:
        gr.Markdown("# Which digit is it?\nThe model reads pictures of 8 x 8 pixels that training never saw.")
        number = gr.Number(EXAMPLES[0], precision=0, label=f"Picture, 0 to {data.HELD_OUT - 1}")
        button = gr.Button("Read", variant="primary")
        picture, scores = gr.Plot(label="Picture"), gr.Label(label="Probabilities", num_top_classes=3)
        gr.Examples([[example] for example in EXAMPLES], number)
        button.click(answer, number, [picture, scores], api_name="read")
        demo.load(answer, number, [picture, scores], api_name=False)
    return demo


def read(number: int | None, model: str = "tiny", device: str = "CPU") -> tuple[Figure, dict[str, float]]:
    """(the figure of a held-out picture, the probability of each digit). Raises ValueError for an unknown number."""
    if number is None or not 0 <= number < data.HELD_OUT:
        raise ValueError(f"There is no picture {number}. Give a number from 0 to {data.HELD_OUT - 1}.")
    picture = data.held_out().pictures[int(number)]
    probabilities = _reader(model, device)(picture[None])[0]
    scores = {str(digit): float(probability) for digit, probability in enumerate(probabilities)}
    return digits_figure(picture[None], [max(scores, key=scores.get)]), scores


@cache
def _reader(model: str, device: str) -> DigitReader:
    return DigitReader(convert.prepare(model), device)
