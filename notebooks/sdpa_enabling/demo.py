"""The demo: choose a spelling of attention, see what is executed and how fast it is, before and after the pass."""

from __future__ import annotations

from time import perf_counter

import gradio as gr
import numpy as np
import openvino as ov
import torch
from matplotlib.figure import Figure

from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.figures import operations
from notebooks.sdpa_enabling.network import SPELLINGS, Attention
from notebooks.sdpa_enabling.pipeline import WITH_CACHE, analyse, fuse_attention, layer_types, make_stateful
from utils.demo import shown_errors
from utils.models.llm import FP32_PROPERTIES
from utils.tables import number

COLUMNS = ["", "fused", "reading, ms", "one more token, ms", "largest difference from PyTorch"]
MAX_TOKENS = 4096  # memory grows with its square where attention is not fused


def measure(spelling: str, tokens: float, device: str = "CPU") -> tuple[list[list], str, Figure]:
    """Rows of COLUMNS before and after the pass, its report, and a figure of the executed operations.

    Raises ValueError for an unknown spelling, and for a number of tokens that is not from 16 to MAX_TOKENS.
    """
    if spelling not in SPELLINGS:
        raise ValueError(f"There is no spelling {spelling!r}. Choose one of: {', '.join(SPELLINGS)}.")
    if not 16 <= (tokens or 0) <= MAX_TOKENS:
        raise ValueError(f"The text has {tokens} tokens. Choose a number from 16 to {MAX_TOKENS:,}.")
    torch.manual_seed(0)
    network = Attention(spelling).eval()
    x = torch.randn(1, int(tokens) + 1, network.heads * network.size)
    empty = torch.zeros(1, network.kv_heads, 0, network.size)
    with torch.inference_mode():
        expected = network(x, empty, empty)[0].numpy()
    model = to_ir(network)
    make_stateful(model)
    compiled, rows, text = {}, [], ""
    for name in ("before the pass", "after the pass"):
        if name == "after the pass":
            text = str(fuse_attention(model))
        compiled[name] = ov.Core().compile_model(model, device, FP32_PROPERTIES)
        fused = "yes" if layer_types(compiled[name])[WITH_CACHE] else "no"
        rows.append([name, fused, *_measured(compiled[name].create_infer_request(), x.numpy(), expected)])
    return rows, text, operations(compiled)


def _measured(request: ov.InferRequest, x: np.ndarray, expected: np.ndarray) -> tuple[float, float, str]:
    """Milliseconds of all tokens but the last, and of the last, the better of three; the difference from PyTorch."""
    times, difference, beams = [], 0.0, np.zeros(1, np.int32)
    for _ in range(3):
        request.reset_state()
        for part in (slice(0, -1), slice(-1, None)):
            begin = perf_counter()
            request.infer({"x": x[:, part], "beam_idx": beams})
            times.append((perf_counter() - begin) * 1e3)
            difference = max(difference, float(np.abs(request.get_tensor("y").data - expected[:, part]).max()))
    return round(min(times[::2]), 1), round(min(times[1::2]), 2), number(difference)


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens. It needs no checkpoint."""

    def shown(spelling: str, tokens: float) -> tuple:
        with shown_errors():
            return measure(spelling, tokens, device)

    def analysed(file: str | None) -> str:
        with shown_errors():
            return analyse(file, device)[1] if file else ""

    with gr.Blocks(title="Fused attention") as demo:
        gr.Markdown(
            "# Does this attention fuse?\n"
            "Choose how attention is written in PyTorch. The layer is converted, its cache becomes state, and you see "
            "which operations the processor executes, before and after the pass."
        )
        with gr.Row():
            spelling = gr.Dropdown(list(SPELLINGS), value="masked_fill", label="Attention in PyTorch")
            tokens = gr.Number(1024, label="Tokens of the text", precision=0)
            run = gr.Button("Convert and run", variant="primary")
        table = gr.Dataframe(headers=COLUMNS, label="Result", interactive=False)
        text = gr.Textbox(label="What fuse_attention() reports")
        figure = gr.Plot(label="Executed operations", show_label=False)
        gr.Markdown("Or send an ONNX model of your own, up to 20 MB. It stays on this machine.")
        with gr.Row():
            own = gr.File(label="ONNX model", file_types=[".onnx"], height=120)
            own_report = gr.Textbox(label="Its attention, before and after the passes", lines=4)
        one_at_a_time = {"concurrency_id": "cores", "concurrency_limit": 1}
        run.click(shown, [spelling, tokens], [table, text, figure], api_name="measure", **one_at_a_time)
        own.change(analysed, own, own_report, api_name=False, **one_at_a_time)
        demo.load(shown, [spelling, tokens], [table, text, figure], api_name=False, **one_at_a_time)
    return demo
