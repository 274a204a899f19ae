"""Compares every sub-model with PyTorch, on the inputs that a real sentence gives it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from notebooks.sambert_hifigan.measuring import runtimes
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, parts_of
from utils import compare

TOLERANCE = 1e-4
# after all steps; a pitch in Hz; a phase that adds up over all samples
TOLERANCES = dict.fromkeys(("duration", "decoder", "finish", "source"), 1e-3)


def parity(folder: Path, voice: Path, speaker: str, sentence: str, device: str = "CPU") -> list[dict]:
    """A row (`utils.compare`) for each sub-model: PyTorch and OpenVINO in FP32, with the same weights and inputs.

    folder: the IR of the checkpoint folder `voice`. The inputs are those that PyTorch computes for the sentence.
    """
    acoustic, vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
    ours = runtimes.OpenVINORuntime(folder, device=device, **FP32_PROPERTIES)
    theirs = runtimes.StepwiseRuntime(runtimes.eager(runtimes.modules(acoustic, vocoder)), acoustic)
    config = ours.synthesizer.config
    inputs = runtimes.synthesize(theirs, runtimes.read_sentence(ours.synthesizer, speaker, sentence), config)
    rows = []
    for part in parts_of(config):
        if part == "duration":  # all steps
            found, expected = (runtime.durations(*inputs["durations"]) for runtime in (ours, theirs))
        elif part == "decoder":
            found, expected = (runtime.decode(*inputs[part]) for runtime in (ours, theirs))
        else:
            found, expected = (_joined(runtime.run(part, *inputs[part])) for runtime in (ours, theirs))
        rows.append(compare.parity(part, found, expected, TOLERANCES.get(part, TOLERANCE)))
    return rows


def _joined(outputs: Iterable[np.ndarray]) -> np.ndarray:
    """All outputs of a model in one array."""
    return np.concatenate([np.ravel(output) for output in outputs])
