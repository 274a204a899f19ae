"""The step that compresses an IR, in a module of its own: its cache depends on nothing that changes often."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import openvino as ov

from notebooks.llm_methods.pipeline.compressing import compress, needs_text
from utils.models import llm

SAMPLE_TOKENS = 128


def write_compressed(base: Path, call: str, folder: Path) -> float:
    """Run the call of a weight method on the IR in folder `base`; write the IR and its tokenizers. Returns the seconds
    that the call took."""
    samples = text_samples(base) if needs_text(call) else []
    begin = perf_counter()
    model = compress(call, ov.Core().read_model(base / llm.MODEL_XML), samples)
    seconds = perf_counter() - begin
    llm.copy_companions(base, folder)
    ov.save_model(model, folder / llm.MODEL_XML)
    return seconds


def text_samples(folder: Path) -> list[dict]:
    """Inputs of the model: the calibration text of this collection in pieces of SAMPLE_TOKENS tokens."""
    ids = llm.tokenize(folder, "calibration")  # [1, tokens]
    starts = range(0, ids.shape[1] - SAMPLE_TOKENS + 1, SAMPLE_TOKENS)
    return [llm.model_inputs(ids[:, start : start + SAMPLE_TOKENS]) for start in starts]
