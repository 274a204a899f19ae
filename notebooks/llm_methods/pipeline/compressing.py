"""One weight method on one model: its call is a text, and the text is what runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import openvino as ov


def needs_text(call: str) -> bool:
    """Whether a call uses `text`, the samples."""
    return "text" in compile(call, "call", "eval").co_names


def compress(call: str, model: ov.Model, samples: Iterable[Mapping[str, np.ndarray]] = ()) -> ov.Model:
    """The model that the call of a weight method returns; `model` itself may be changed.

    call: an expression of `nncf`, `Mode` (nncf.CompressWeightsMode), `model`, `text` (an nncf.Dataset of samples) and
    `student_t`. samples: inputs of the model by name, for a call that uses `text`. Raises ValueError where these are
    missing, and whatever NNCF raises.
    """
    import nncf

    samples = list(samples)
    if needs_text(call) and not samples:
        raise ValueError(f"{call} needs samples of text. Give it inputs of the model: token ids of a page or more.")
    names = {"nncf": nncf, "Mode": nncf.CompressWeightsMode, "model": model, "student_t": student_t}
    return eval(call, names | ({"text": nncf.Dataset(samples)} if samples else {}))


def student_t(degrees: float = 5.0) -> np.ndarray:
    """16 values from -1 to 1 at equal steps of probability under Student's t-distribution, zero among them.

    It has more values far from zero than a normal distribution, as the weights of language models have.
    """
    from scipy.stats import t

    largest = 1 - 0.5 * (1 / 32 + 1 / 30)  # its probability; NF4 takes the same for the normal distribution
    positive = t.ppf(np.linspace(0.5, largest, 9), degrees)[1:]
    negative = -t.ppf(np.linspace(0.5, largest, 8), degrees)[1:]
    values = np.concatenate([negative, [0.0], positive])
    return np.sort(values / values.max()).astype(np.float32)
