"""The network to OpenVINO IR, in the form that the CPU plugin fuses; INT8; and, to compare with, as a loop.

`convert` writes an IR of static length and dynamic batch, from which `pipeline.py` cuts shorter ones. `prepare`
does that for the collection's checkpoints and caches it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch
from openvino.frontend.pytorch import ConversionExtension, ModuleExtension
from torch import Tensor

from notebooks.dien.data import LONGEST
from notebooks.dien.network.dien import CODED, DIEN, INPUTS, Config, load_released
from notebooks.dien.pipeline import SplitGates, run_passes
from utils import weights
from utils.convert import cached

MODEL_XML = "dien.xml"
MODELS = {"tiny": "dien_tiny", "released": "dien_amazon_books"}
PRECISIONS = {"tiny": ("FP32", "INT8"), "released": ("FP32",)}
ELEMENTWISE = ["Add", "Multiply", "ReduceSum", "Subtract"]  # NNCF would quantise these, too, also inside the cells
LENGTH = 100  # steps of history, as in the paper's training
LENGTHS = {"tiny": LONGEST, "released": LENGTH}


def convert(network: DIEN, path: str | Path, length: int = LENGTH, fuse: bool = True) -> Path:
    """Write the IR of `network` for histories of up to `length` items to `path` (an .xml file); returns the path.

    Inputs as in `DIEN.forward`, batch dynamic; outputs "y_hat" [B, 2] and "attention" [B, T]. FP32 weights. With
    `fuse`, both recurrences run as one sequence operation each (the GRU is written as one, the AUGRU becomes a pattern
    that the CPU plugin merges) and the attention is folded; without, the graph is what tracing gives. Raises
    ValueError for a length under 1 or a path that is no .xml file.
    """
    path = Path(path)
    if length < 1 or path.suffix != ".xml":
        raise ValueError(f"convert takes a length of at least 1 and an .xml file, not {length} and {path.name}.")
    model = trace(_Fusible.of(network) if fuse else network, length)
    if fuse:
        run_passes(model, [SplitGates()])
    return _save(model, network.config, length, path)


def convert_loop(network: DIEN, path: str | Path) -> Path:
    """The same network with both recurrences as OpenVINO loops: any length, nothing fused."""
    return _save(trace(_Looping.of(network), None), network.config, 0, Path(path))


def trace(network: DIEN, length: int | None) -> ov.Model:
    """Trace to an OpenVINO model of dynamic batch and of a length, None for a dynamic one."""
    steps, rows = length or 3, 2
    example = [torch.ones(rows, dtype=torch.int64)] * 3 + [torch.ones(rows, steps, dtype=torch.int64)] * 2
    example += [torch.ones(rows, steps), torch.full((rows,), steps, dtype=torch.int64)]
    shapes = [ov.PartialShape([-1] if x.ndim == 1 else [-1, length or -1]) for x in example]
    extensions = _gru_extensions(network.config.item)
    with torch.no_grad():
        model = ov.convert_model(network.eval(), example_input=tuple(example), input=shapes, extension=extensions)
    for port, name in zip(model.inputs, INPUTS, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, ("y_hat", "attention"), strict=True):
        port.get_tensor().set_names({name})
    return model


def quantize(ir: Path, samples: Iterable[dict[str, np.ndarray]], path: Path) -> Path:
    """Write an INT8 IR: the dense layers by NNCF on sample inputs, the embedding tables by weight compression.

    The two recurrences stay as they are: quantised inside, they would no longer fuse.
    """
    import nncf

    nncf.set_log_level(logging.ERROR)

    model = ov.Core().read_model(ir)
    recurrent = [node.get_friendly_name() for node in model.get_ops() if _is_recurrent(node)]
    quantized = nncf.quantize(
        model,
        nncf.Dataset(list(samples)),
        subset_size=300,
        ignored_scope=nncf.IgnoredScope(names=recurrent, types=ELEMENTWISE, validate=False),
    )
    products = [node.get_friendly_name() for node in quantized.get_ops() if node.get_type_name() == "MatMul"]
    compressed = nncf.compress_weights(
        quantized,
        mode=nncf.CompressWeightsMode.INT8_ASYM,
        ignored_scope=nncf.IgnoredScope(names=products, validate=False),
    )
    for key in ("sizes", "independent", "length"):
        compressed.set_rt_info(model.get_rt_info(["dien", key]).value, ["dien", key])
    ov.save_model(compressed, path, compress_to_fp16=False)
    return path


def load(model: str = "tiny") -> DIEN:
    """The network of MODEL with its trained weights; CHECKPOINT names another file or folder of its kind."""
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. There are: {', '.join(MODELS)}.")
    path = weights.resolve(MODELS[model])
    if model == "tiny":
        from notebooks.dien.training import load as load_tiny

        return load_tiny(folder=path)
    tensors = load_released(path)
    network = DIEN(Config.of(tensors))
    network.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
    return network.eval()


def prepare(model: str = "tiny", precision: str = "FP32", length: int | None = None) -> Path:
    """The .xml file of a model at a precision, converted once and then cached. ValueError for unknown names.

    INT8 needs data to calibrate on, which there is for `tiny` alone.
    """
    if precision not in PRECISIONS.get(model, ()):
        told = "; ".join(f"{name}: {', '.join(known)}" for name, known in PRECISIONS.items())
        raise ValueError(f"There is no {precision} of {model!r}. There are {told}.")
    length = length or LENGTHS[model]
    checkpoint = weights.resolve(MODELS[model])

    def build(folder: Path) -> None:
        if precision == "FP32":
            convert(load(model), folder / MODEL_XML, length)
        else:
            quantize(prepare(model, "FP32", length), _calibration(length), folder / MODEL_XML)

    arguments = {"length": length, "form": 2}
    name = f"dien-{model}-{precision.lower()}"
    return cached(name, build, checkpoint=checkpoint, arguments=arguments, versions=("openvino", "nncf", "torch")) / (
        MODEL_XML
    )


def _calibration(length: int, rows: int = 32, count: int = 20) -> list[dict[str, np.ndarray]]:
    """Batches of what training saw: positives and negatives after true histories."""
    from notebooks.dien.data import movielens

    movies, rng = movielens(), np.random.default_rng(0)
    users, places = movies.positions(held_out=False)
    samples = []
    for _ in range(count):
        chosen = rng.choice(len(users), rows)
        users_, places_ = users[chosen], places[chosen]
        mid_his, seq_len = movies.histories(users_, places_)
        mid_his = np.pad(mid_his, ((0, 0), (0, max(0, length - mid_his.shape[1]))))[:, :length]
        seq_len = np.minimum(seq_len, length)
        positives = np.array([movies.sequences[u - 1][p] for u, p in zip(users_, places_, strict=True)])
        negatives = movies.negatives(users_, "popularity", rng)
        mid = np.where(rng.random(rows) < 0.5, positives, negatives)
        mask = (np.arange(length) < seq_len[:, None]).astype(np.float32)
        category = movies.category
        arrays = (users_, mid, category[mid], mid_his, category[mid_his], mask, seq_len)
        samples.append(dict(zip(INPUTS, arrays, strict=True)))
    return samples


def _save(model: ov.Model, config: Config, length: int, path: Path) -> Path:
    """Write the IR whole or not at all, with what the runtime must know of it."""
    sizes = f"{config.n_uid} {config.n_mid} {config.n_cat}"
    for key, value in (("sizes", sizes), ("independent", str(config.independent)), ("length", str(length))):
        model.set_rt_info(value, ["dien", key])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    ov.save_model(model, partial, compress_to_fp16=False)
    os.replace(partial.with_suffix(".bin"), path.with_suffix(".bin"))
    os.replace(partial, path)
    return path


def _is_recurrent(node: ov.Node) -> bool:
    """Whether a MatMul belongs to a recurrent cell: its sum goes into gates that are split, or into a tanh."""
    if node.get_type_name() != "MatMul":
        return False
    kinds = []
    while len(kinds) < 3 and len(targets := list(node.output(0).get_target_inputs())) == 1:
        node = targets[0].get_node()
        kinds.append(node.get_type_name())
    return kinds[:3] == ["Add", "Sigmoid", "Split"] or kinds[:2] == ["Add", "Tanh"]


class _Twin(DIEN):
    """A network with another way to compute the same, sharing the tensors of the one it was made from."""

    @classmethod
    def of(cls, network: DIEN) -> DIEN:
        with torch.device("meta"):
            twin = cls(network.config)
        twin.load_state_dict(network.state_dict(), assign=True)
        return twin.eval()


class _GRUSequence(torch.nn.Module):
    """Where the traced network holds a whole GRU: the operation GRUSequence, from the zero state.

    PyTorch's own GRU resets after the matrix product and so cannot stand for it.
    """

    def forward(self, inputs: Tensor, for_input: Tensor, for_state: Tensor, bias: Tensor) -> Tensor:
        return inputs.clone()  # read by the tracer, for its shape


def _gru_extensions(width: int) -> list:
    """What makes the converter write a `_GRUSequence` of `width` states as OpenVINO's operation of that name."""

    def convert(context) -> list[ov.Output]:
        inputs, for_input, for_state, bias = (context.get_input(i) for i in range(4))
        batch, steps = (ops.gather(ops.shape_of(inputs), np.array([axis]), 0) for axis in (0, 1))
        state = ops.broadcast(np.float32(0), ops.concat([batch, np.array([1, width])], 0))
        lengths = ops.broadcast(steps, batch)  # all of them: states past a row's end are never read
        sequence = ops.gru_sequence(inputs, state, lengths, for_input, for_state, bias, width, "forward")
        return [ops.squeeze(sequence.output(0), np.array([1])).output(0)]

    return [ModuleExtension(_GRUSequence, "GRUSequence"), ConversionExtension("GRUSequence", convert)]


class _Fusible(_Twin):
    """Computes the same with less: what the plugin cannot fuse or leave out by itself is written so that it can."""

    @classmethod
    def of(cls, network: DIEN) -> DIEN:
        twin = super().of(network)
        twin.sequence = _GRUSequence()
        return twin

    def recur(self, name: str, inputs: Tensor, attention: Tensor | None = None, form: str = CODED) -> Tensor:
        """Without attention, as an operation that OpenVINO has: update gate first, kernels [out, in] apart."""
        if attention is not None:
            return super().recur(name, inputs, attention, form)
        parts = [self[f"{name}/{part}/{kind}"] for kind in ("kernel", "bias") for part in ("gates", "candidate")]
        reset, update, bias_reset, bias_update = *parts[0].chunk(2, 1), *parts[2].chunk(2)
        kernels = torch.cat([update, reset, parts[1]], 1).t()
        for_input, for_state = kernels[None].chunk(2, 2)
        return self.sequence(inputs, for_input, for_state, torch.cat([bias_update, bias_reset, parts[3]])[None])

    def attend(self, item: Tensor, interests: Tensor, mask: Tensor) -> Tensor:
        """Without joining query, state, difference and product [B, T, 144]: the first layer is linear in the state,

        so that for one candidate its weights fold into one matrix [36, 80] a row, and a term that no step changes.
        """
        query = self.query(item)
        for_query, for_state, for_difference, for_product = self["dien/f1_att1_1/kernel"].chunk(4)
        per_row = (for_state - for_difference) + query[..., None] * for_product
        same = query @ (for_query + for_difference) + self["dien/f1_att1_1/bias"]
        return self.weigh((interests @ per_row + same[:, None]).sigmoid(), mask)

    def final(self, evolved: Tensor, seq_len: Tensor) -> Tensor:
        """The state at seq_len picked, not summed out of all the others multiplied by 0."""
        last = (seq_len - 1).clamp_min(0)[:, None, None].expand(-1, 1, evolved.shape[2])
        return evolved.gather(1, last)[:, 0] * (seq_len > 0)[:, None]


class _Looping(_Twin):
    """Recurs in a scripted loop, which becomes an OpenVINO Loop."""

    def recur(self, name: str, inputs, attention=None, form: str = CODED) -> torch.Tensor:
        tensors = [self[f"{name}/{part}/{kind}"] for part in ("gates", "candidate") for kind in ("kernel", "bias")]
        if attention is None:
            attention = torch.zeros_like(inputs[..., 0])
        return _loop(inputs, attention, *tensors)


@torch.jit.script
def _loop(inputs, attention, gates, gates_bias, candidate, candidate_bias):
    state = torch.zeros_like(inputs[:, 0])
    states = torch.zeros_like(inputs[:, :0])
    for step in range(inputs.shape[1]):
        x = inputs[:, step]
        both = torch.sigmoid(torch.cat([x, state], 1) @ gates + gates_bias)
        width = state.shape[1]
        reset, update = both[:, :width], both[:, width:]
        new = torch.tanh(torch.cat([x, reset * state], 1) @ candidate + candidate_bias)
        update = (1 - attention[:, step : step + 1]) * update
        state = update * state + (1 - update) * new
        states = torch.cat([states, state.unsqueeze(1)], 1)
    return states
