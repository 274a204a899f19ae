"""Converts the network to OpenVINO IR: fused, in INT8, and for comparison unfused or as a loop.

`convert` writes an IR of static length and dynamic batch, from which `pipeline.py` cuts shorter graphs. `prepare`
converts the checkpoints of this collection and caches the result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch
from openvino.frontend.pytorch import ConversionExtension, ModuleExtension
from torch import Tensor

from notebooks.dien.data import MAX_HISTORY, movielens
from notebooks.dien.network import CODED, DIEN, INPUTS, Config, load_released, load_tiny
from notebooks.dien.pipeline import SplitGates, run_passes
from utils import weights
from utils.convert import cached
from utils.files import replaced

MODEL_XML = "dien.xml"
MODELS = {"tiny": "dien_tiny", "released": "dien_amazon_books"}
PRECISIONS = {"tiny": ("FP32", "INT8"), "released": ("FP32",)}
ELEMENTWISE = ["Add", "Multiply", "ReduceSum", "Subtract"]  # NNCF would quantise these as well, also inside the cells
LENGTH = 100  # steps of history, as in the paper's training
LENGTHS = {"tiny": MAX_HISTORY, "released": LENGTH}


def convert(network: DIEN, path: str | Path, length: int = LENGTH, fuse: bool = True) -> Path:
    """Write the IR of `network` for histories of up to `length` items to `path` (an .xml file); returns the path.

    Inputs as in `DIEN.forward`, batch dynamic; outputs "y_hat" [B, 2] and "attention" [B, T]. FP32 weights. With
    `fuse`, each recurrence runs as one sequence operation: the GRU is written as one, and the AUGRU becomes a pattern
    that the CPU plugin merges. The first attention layer is folded. Without `fuse`, the graph is that of the tracer.
    Raises ValueError for a length under 1 or a path that is no .xml file.
    """
    path = Path(path)
    if length < 1 or path.suffix != ".xml":
        raise ValueError(f"convert takes a length of at least 1 and an .xml file, not {length} and {path.name}.")
    model = trace(Fusible.of(network) if fuse else network, length)
    if fuse:
        run_passes(model, [SplitGates()])
    describe(model, network.config, length)
    return _save(model, path)


def convert_loop(network: DIEN, path: str | Path) -> Path:
    """Write the IR with both recurrences as OpenVINO loops to `path`: any length, nothing fused; returns the path."""
    model = trace(_Looping.of(network), None)
    describe(model, network.config, 0)
    return _save(model, Path(path))


def trace(network: DIEN, length: int | None) -> ov.Model:
    """Trace to an OpenVINO model with a dynamic batch and `length` steps, or with dynamic steps for None."""
    example, shapes = trace_inputs(length or 3)
    if length is None:
        shapes = [ov.PartialShape([-1] * len(shape)) for shape in shapes]
    extensions = gru_extensions(network.config.item_width)
    with torch.no_grad():
        return ov.convert_model(network.eval(), example_input=example, input=shapes, extension=extensions)


def trace_inputs(length: int) -> tuple[tuple[Tensor, ...], list[ov.PartialShape]]:
    """Two rows of `length` items that the tracer runs through the network, and the shapes that the IR takes."""
    ids = torch.ones(2, dtype=torch.int64)  # uid, mid, cat
    history = torch.ones(2, length, dtype=torch.int64)  # mid_his, cat_his
    mask, seq_len = torch.ones(2, length), torch.full((2,), length, dtype=torch.int64)
    example = (ids, ids, ids, history, history, mask, seq_len)
    return example, [ov.PartialShape([-1] if x.ndim == 1 else [-1, length]) for x in example]


def describe(model: ov.Model, config: Config, length: int) -> None:
    """Name the inputs and outputs, and write into the model what `ClickModel` reads: sizes, form and length."""
    for port, name in zip(model.inputs, INPUTS, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, ("y_hat", "attention"), strict=True):
        port.get_tensor().set_names({name})
    sizes = f"{config.n_uid} {config.n_mid} {config.n_cat}"
    for key, value in (("sizes", sizes), ("independent", str(config.independent)), ("length", str(length))):
        model.set_rt_info(value, ["dien", key])


def quantize(ir: Path, samples: Iterable[dict[str, np.ndarray]], path: Path) -> Path:
    """Write an INT8 IR to `path` and return it: dense layers quantised by NNCF, embedding tables compressed.

    samples: inputs by name, on which NNCF calibrates the activations. The two recurrences stay in FP32, because with
    quantised operations inside they would no longer fuse.
    """
    import nncf

    nncf.set_log_level(logging.ERROR)

    model = ov.Core().read_model(ir)
    skipped = nncf.IgnoredScope(names=recurrent_products(model), types=ELEMENTWISE, validate=False)
    quantized = nncf.quantize(model, nncf.Dataset(list(samples)), ignored_scope=skipped)
    tables_only = nncf.IgnoredScope(names=products(quantized), validate=False)
    compressed = nncf.compress_weights(quantized, mode=nncf.CompressWeightsMode.INT8_ASYM, ignored_scope=tables_only)
    copy_description(model, compressed)
    ov.save_model(compressed, path, compress_to_fp16=False)
    return path


def products(model: ov.Model) -> list[str]:
    """The names of the matrix products."""
    return [node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "MatMul"]


def recurrent_products(model: ov.Model) -> list[str]:
    """The names of the matrix products inside recurrent cells."""
    return [node.get_friendly_name() for node in model.get_ops() if _is_recurrent(node)]


def copy_description(source: ov.Model, target: ov.Model) -> None:
    """Write into `target` what `describe` wrote into `source`; NNCF leaves it out."""
    for key in ("sizes", "independent", "length"):
        target.set_rt_info(source.get_rt_info(["dien", key]).value, ["dien", key])


def load(model: str = "tiny") -> DIEN:
    """The network of a model with its trained weights. The variable CHECKPOINT names another file or folder.

    Raises ValueError for an unknown model.
    """
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. There are: {', '.join(MODELS)}.")
    path = weights.resolve(MODELS[model])
    if model == "tiny":
        return load_tiny(folder=path)
    tensors = load_released(path)
    network = DIEN(Config.of(tensors))
    network.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
    return network.eval()


def prepare(model: str = "tiny", precision: str = "FP32", length: int | None = None) -> Path:
    """The .xml file of a model at a precision, converted once and then cached.

    Only `tiny` has INT8, because calibration needs data. Raises ValueError for unknown names.
    """
    if precision not in PRECISIONS.get(model, ()):
        choices = "; ".join(f"{name}: {', '.join(precisions)}" for name, precisions in PRECISIONS.items())
        raise ValueError(f"There is no {precision} of {model!r}. There are {choices}.")
    length = length or LENGTHS[model]
    checkpoint = weights.resolve(MODELS[model])

    @cached(
        f"dien-{model}-{precision.lower()}",
        checkpoint=checkpoint,
        arguments={"length": length, "form": 2},
        versions=("openvino", "nncf", "torch"),
    )
    def build(folder: Path) -> None:
        if precision == "FP32":
            convert(load(model), folder / MODEL_XML, length)
        else:
            quantize(prepare(model, "FP32", length), calibration(length), folder / MODEL_XML)

    return build() / MODEL_XML


def calibration(length: int, rows: int = 32, count: int = 20) -> list[dict[str, np.ndarray]]:
    """Batches from the training data, inputs by name: positives and negatives after true histories."""
    movies, rng = movielens(), np.random.default_rng(0)
    all_users, all_positions = movies.positions(held_out=False)
    samples = []
    for _ in range(count):
        chosen = rng.choice(len(all_users), rows)
        users, positions = all_users[chosen], all_positions[chosen]
        mid_his, seq_len = movies.histories(users, positions)
        mid_his = np.pad(mid_his, ((0, 0), (0, max(0, length - mid_his.shape[1]))))[:, :length]  # [rows, length]
        seq_len = np.minimum(seq_len, length)  # [rows]
        positives = movies.items_at(users, positions)
        negatives = movies.negatives(users, "popularity", rng, training=True)
        mid = np.where(rng.random(rows) < 0.5, positives, negatives)  # [rows]
        mask = (np.arange(length) < seq_len[:, None]).astype(np.float32)  # [rows, length]
        category = movies.category
        arrays = (users, mid, category[mid], mid_his, category[mid_his], mask, seq_len)
        samples.append(dict(zip(INPUTS, arrays, strict=True)))
    return samples


def _save(model: ov.Model, path: Path) -> Path:
    """Write the IR whole or not at all."""
    with replaced(path) as partial:
        ov.save_model(model, partial, compress_to_fp16=False)
    return path


def _is_recurrent(node: ov.Node) -> bool:
    """Whether a node is a MatMul of a recurrent cell: its sum feeds gates that are split, or a tanh."""
    if node.get_type_name() != "MatMul":
        return False
    kinds = []
    while len(kinds) < 3 and len(targets := list(node.output(0).get_target_inputs())) == 1:
        node = targets[0].get_node()
        kinds.append(node.get_type_name())
    return kinds[:3] == ["Add", "Sigmoid", "Split"] or kinds[:2] == ["Add", "Tanh"]


class _Equivalent(DIEN):
    """A network that computes the same results in another way. It shares the tensors of the original."""

    @classmethod
    def of(cls, network: DIEN) -> DIEN:
        with torch.device("meta"):
            equivalent = cls(network.config)
        equivalent.load_state_dict(network.state_dict(), assign=True)
        return equivalent.eval()


class _GRUSequence(torch.nn.Module):
    """Marks a whole GRU from the zero state in the traced network; the converter writes it as one GRUSequence.

    PyTorch's own GRU cannot take its place, because its reset comes after the matrix product.
    """

    def forward(self, inputs: Tensor, for_input: Tensor, for_state: Tensor, bias: Tensor) -> Tensor:
        return inputs.clone()  # the tracer needs the shape only


def gru_extensions(width: int) -> list:
    """Converter extensions that write a `_GRUSequence` of `width` states as OpenVINO's operation of that name."""

    def convert(context) -> list[ov.Output]:
        inputs, for_input, for_state, bias = (context.get_input(i) for i in range(4))
        batch, steps = (ops.gather(ops.shape_of(inputs), np.array([axis]), 0) for axis in (0, 1))
        state = ops.broadcast(np.float32(0), ops.concat([batch, np.array([1, width])], 0))
        lengths = ops.broadcast(steps, batch)  # every row runs all steps: states past its end are never read
        sequence = ops.gru_sequence(inputs, state, lengths, for_input, for_state, bias, width, "forward")
        return [ops.squeeze(sequence.output(0), np.array([1])).output(0)]

    return [ModuleExtension(_GRUSequence, "GRUSequence"), ConversionExtension("GRUSequence", convert)]


class Fusible(_Equivalent):
    """Computes the same results in a form that the CPU plugin can fuse, with fewer operations."""

    @classmethod
    def of(cls, network: DIEN) -> DIEN:
        fusible = super().of(network)
        fusible.sequence = _GRUSequence()
        return fusible

    def gru(self, name: str, inputs: Tensor, attention: Tensor | None = None, form: str = CODED) -> Tensor:
        """Without attention, a GRUSequence: update gate first, kernels [out, in] of input and state separate."""
        if attention is not None:
            return super().gru(name, inputs, attention, form)
        reset, update = self[f"{name}/gates/kernel"].chunk(2, 1)  # [2 * width, width] each
        reset_bias, update_bias = self[f"{name}/gates/bias"].chunk(2)  # [width] each
        candidate, candidate_bias = self[f"{name}/candidate/kernel"], self[f"{name}/candidate/bias"]
        kernels = torch.cat([update, reset, candidate], 1).t()  # [3 * width, 2 * width]
        for_input, for_state = kernels[None].chunk(2, 2)  # [1, 3 * width, width] each
        bias = torch.cat([update_bias, reset_bias, candidate_bias])[None]  # [1, 3 * width]
        return self.sequence(inputs, for_input, for_state, bias)

    def attend(self, item: Tensor, interests: Tensor, mask: Tensor) -> Tensor:
        """Without the concatenation [B, T, 144] of query, state, difference and product.

        The first layer is linear in the state. For one candidate, its weights therefore fold into one matrix
        [36, 80] a row, and a term that is the same at all steps.
        """
        query = self.query(item)  # [rows, width]
        for_query, for_state, for_difference, for_product = self["dien/f1_att1_1/kernel"].chunk(4)  # [width, 80] each
        per_row = (for_state - for_difference) + query[..., None] * for_product  # [rows, width, 80]
        constant = query @ (for_query + for_difference) + self["dien/f1_att1_1/bias"]  # [rows, 80]
        return self.attention_weights((interests @ per_row + constant[:, None]).sigmoid(), mask)

    def last_state(self, evolved: Tensor, seq_len: Tensor) -> Tensor:
        """Gathers the state at the last step, in place of a sum in which all other states are multiplied by 0."""
        last = (seq_len - 1).clamp_min(0)[:, None, None].expand(-1, 1, evolved.shape[2])  # [rows, 1, width]
        state = evolved.gather(1, last)[:, 0]  # [rows, width]
        return torch.where((seq_len > 0)[:, None], state, 0.0)  # a product with a boolean is wrong on ARM


class _Looping(_Equivalent):
    """Runs both recurrences in a scripted loop, which becomes an OpenVINO Loop."""

    def gru(self, name: str, inputs, attention=None, form: str = CODED) -> torch.Tensor:
        tensors = [self[f"{name}/{part}/{kind}"] for part in ("gates", "candidate") for kind in ("kernel", "bias")]
        if attention is None:
            attention = torch.zeros_like(inputs[..., 0])
        return _loop(inputs, attention, *tensors)


@torch.jit.script
def _loop(inputs, attention, gates, gates_bias, candidate, candidate_bias):
    """`DIEN.gru` in its coded form, with tensors in place of names."""
    state = torch.zeros_like(inputs[:, 0])  # [rows, width]
    states = torch.zeros_like(inputs[:, :0])  # [rows, 0, width]
    for step in range(inputs.shape[1]):
        x = inputs[:, step]  # [rows, width]
        both = torch.sigmoid(torch.cat([x, state], 1) @ gates + gates_bias)  # [rows, 2 * width]
        width = state.shape[1]
        reset, update = both[:, :width], both[:, width:]
        new = torch.tanh(torch.cat([x, reset * state], 1) @ candidate + candidate_bias)
        update = (1 - attention[:, step : step + 1]) * update  # [rows, width]
        state = update * state + (1 - update) * new
        states = torch.cat([states, state.unsqueeze(1)], 1)  # [rows, step + 1, width]
    return states
