"""The demo: choose how long requests are and how many buckets there are; see padding, times and memory of kernels."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import gradio as gr
import numpy as np
import openvino as ov

from notebooks.dynamic_shapes.convert import to_ir
from notebooks.dynamic_shapes.network import WIDTH
from notebooks.dynamic_shapes.pipeline import Bucketed, choose_buckets
from utils.demo import shown_errors

COLUMNS = ["", "models or shapes", "padding, %", "median, ms", "p99, ms", "all requests, s"]
LONGEST, MAX_REQUESTS = 512, 300
FP32 = {"INFERENCE_PRECISION_HINT": "f32"}


@cache
def vocoder() -> ov.Model:
    """A vocoder with random weights."""
    return to_ir("vocoder")


def serve(median: float, requests: float, buckets: float, device: str = "CPU") -> tuple[list[list], str]:
    """Rows of COLUMNS for a plain dynamic model, buckets, and padding to the longest; and the buckets' report.

    median: of the log-normal lengths. Raises ValueError for numbers that are out of range.
    """
    for name, value, low, high in (
        ("median length", median, 8, 256),
        ("number of requests", requests, 20, MAX_REQUESTS),
        ("number of buckets", buckets, 1, 32),
    ):
        if not low <= (value or 0) <= high:
            raise ValueError(f"The {name} is {value}. Choose a number from {low} to {high}.")
    rng = np.random.default_rng(0)
    seen, lengths = (
        np.clip(rng.lognormal(np.log(median), 0.7, int(n)), 1, LONGEST).astype(int) for n in (2000, requests)
    )
    chosen = choose_buckets(seen, int(buckets), LONGEST)
    request = ov.Core().compile_model(vocoder(), device, FP32).create_infer_request()
    runner, padded = (Bucketed(vocoder(), b, mask="mask", device=device, properties=FP32) for b in (chosen, [LONGEST]))
    rows = [
        ["plain dynamic", len(set(lengths)), 0.0, *_times(lambda i: request.infer(i), lengths)],
        ["buckets", 0, 0.0, *_times(runner, lengths)],
        ["padded to the longest", 0, 0.0, *_times(padded, lengths)],
    ]
    for row, own in zip(rows[1:], (runner, padded), strict=True):
        row[1:3] = [len(own.usage().by_bucket), round(100 * own.usage().padding, 1)]
    return rows, str(runner.usage())


def _times(call, lengths: np.ndarray) -> tuple[float, float, float]:
    """The median and p99 in ms, and the sum in seconds."""
    times = []
    for n in lengths:
        inputs = {"x": np.ones((1, n, WIDTH), np.float32), "mask": np.ones((1, n), np.float32)}
        begin = perf_counter()
        call(inputs)
        times.append((perf_counter() - begin) * 1e3)
    return round(float(np.median(times)), 1), round(float(np.percentile(times, 99)), 1), round(sum(times) / 1e3, 2)


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens. It needs no checkpoint."""

    def shown(median: float, requests: float, buckets: float) -> tuple:
        with shown_errors():
            return serve(median, requests, buckets, device)

    with gr.Blocks(title="Dynamic shapes") as demo:
        gr.Markdown(
            "# What does a new length cost?\n"
            "Requests of many lengths go to a network that makes sound. You see what they take with a plain dynamic "
            "model, in buckets, and padded to the longest."
        )
        with gr.Row():
            median = gr.Number(80, label="Median length", precision=0)
            requests = gr.Number(150, label="Requests", precision=0)
            buckets = gr.Number(8, label="Buckets", precision=0)
            run = gr.Button("Run the requests", variant="primary")
        table = gr.Dataframe(headers=COLUMNS, label="Result", interactive=False)
        text = gr.Textbox(label="What the buckets report", lines=2)
        one_at_a_time = {"concurrency_id": "cores", "concurrency_limit": 1}
        run.click(shown, [median, requests, buckets], [table, text], api_name="serve", **one_at_a_time)
        demo.load(shown, [median, requests, buckets], [table, text], api_name=False, **one_at_a_time)
    return demo
