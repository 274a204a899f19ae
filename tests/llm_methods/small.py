"""A small network with three layers, which every weight method can compress in a second."""

import numpy as np
import openvino as ov
from openvino import opset13 as ops

WIDTH = 128


def network(seed: int = 0, width: int = WIDTH) -> ov.Model:
    """Input x [n, width], three products with weights [width, width]."""
    rng = np.random.default_rng(seed)
    x = ops.parameter([-1, width], np.float32, name="x")
    y = x
    for _ in range(3):
        weights = rng.standard_t(5, (width, width)).astype(np.float32) / width**0.5
        y = ops.relu(ops.matmul(y, ops.constant(weights), False, True))
    return ov.Model([y], [x])


def samples(count: int = 4) -> list[dict]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((8, WIDTH)).astype(np.float32)} for _ in range(count)]


def output(model: ov.Model) -> np.ndarray:
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    return request.infer(samples(1)[0])[0].copy()


def types(model: ov.Model) -> set[str]:
    """The types of the constants that hold weights."""
    found = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    return {node.get_element_type().get_type_name() for node in found if node.get_output_size() and len(node.shape) > 1}


def row(name: str, **fields) -> dict:
    """A measured row of weights with plausible numbers."""
    plausible = {"perplexity": 25.0, "model_mb": 100.0, "running_mb": 500, "first_ms": 100.0, "tokens_per_s": 50.0}
    return {"kind": "weights", "name": name, "call": "model"} | plausible | fields
