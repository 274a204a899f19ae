"""Converts checkpoints to OpenVINO IR, one function per sub-model, and the generator to INT8.

`prepare` converts the checkpoints of this collection and caches the result. `pipeline` reads the IRs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import Tensor, nn

from notebooks.wav2lip.network import S3FD, SyncNet, Wav2Lip, load_released, load_tiny
from utils import weights
from utils.convert import cached
from utils.files import replaced
from utils.models import tracing

AUDIO = (1, 80, 16)  # shape of one item: mel bands, mel frames
FACE = (6, 96, 96)  # shape of one item: the masked face and the one to copy from
LOWER_HALVES = (15, 48, 96)  # shape of one item: five consecutive frames
STRIDES = (4, 8, 16, 32, 64, 128)
PRECISIONS = ("FP32", "FP16", "INT8")  # of the weights; the arithmetic is chosen when a model is compiled
OUTLIERS = 1e-3  # share of an activation's values that its INT8 range leaves out at either end
CHECKPOINTS = {  # part -> model -> name of the checkpoint
    "wav2lip": {"tiny": "wav2lip_tiny", "released": "wav2lip_gan"},
    "syncnet": {"tiny": "wav2lip_tiny", "released": "lipsync_expert"},
    "face_detection": {"tiny": "blazeface", "released": "s3fd"},
}
Items = Iterable[Mapping[str, np.ndarray]]  # batches of the generator's inputs by name


def convert_generator(network: Wav2Lip, path: str | Path, half: bool = False) -> Path:
    """Write the generator's IR to `path` (an .xml file), weights in FP16 with `half`; returns the path.

    Inputs `audio` [B, 1, 80, 16] and `face` [B, 6, 96, 96], output `faces` [B, 3, 96, 96]; any B.
    """
    example = {"audio": torch.zeros(2, *AUDIO), "face": torch.zeros(2, *FACE)}
    return _save(_trace(network, example, [-1], ["faces"]), path, half)


def convert_expert(network: SyncNet, path: str | Path, half: bool = False) -> Path:
    """Write the IR of the lip-sync expert, as `convert_generator` does.

    Inputs `audio` [B, 1, 80, 16] and `face` [B, 15, 48, 96], outputs `audio_embedding` and `face_embedding`
    [B, 512] at the released width; any B.
    """
    example = {"audio": torch.zeros(2, *AUDIO), "face": torch.zeros(2, *LOWER_HALVES)}
    return _save(_trace(network, example, [-1], ["audio_embedding", "face_embedding"]), path, half)


def convert_detector(network: S3FD, path: str | Path, half: bool = False) -> Path:
    """Write the face detector's IR, as `convert_generator` does.

    Input `image` [B, 3, H, W], any size; outputs `scores_4`, `offsets_4`, `scores_8` ... `offsets_128`, named after
    their strides, as `S3FD.forward` gives them.
    """
    names = [f"{kind}_{stride}" for stride in STRIDES for kind in ("scores", "offsets")]
    return _save(_trace(network, {"image": torch.zeros(1, 3, 256, 256)}, [-1, 3, -1, -1], names), path, half)


def quantize(ir: str | Path, items: Items, path: str | Path) -> Path:
    """Write an INT8 IR of the generator in `ir` to `path`; returns the path.

    items: batches of true inputs, `audio` and `face` by name, which calibrate the ranges of the activations.
    Activations that can be negative are quantised asymmetrically (the mixed preset). Raises ValueError without items.
    """
    return _save(quantized(ov.Core().read_model(ir), items), path, half=True)


def quantized(model: ov.Model, items: Iterable) -> ov.Model:
    """A copy of the model with INT8 convolutions; items: inputs of the model to calibrate on.

    Ranges leave out the lowest and the highest 0.1 % of an activation: with all of them, steps are too coarse.
    """
    import nncf
    from nncf.quantization.range_estimator import (
        AggregatorType,
        RangeEstimatorParameters,
        StatisticsCollectorParameters,
        StatisticsType,
    )

    nncf.set_log_level(logging.ERROR)
    if not (items := list(items)):
        raise ValueError("Quantization needs inputs to calibrate on, and there are none. Pass some true ones.")
    end = StatisticsCollectorParameters(StatisticsType.QUANTILE, AggregatorType.MEAN, quantile_outlier_prob=OUTLIERS)
    return nncf.quantize(
        model,
        nncf.Dataset(items),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(items),
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=RangeEstimatorParameters(min=end, max=end)
        ),
    )


def load(part: str = "wav2lip", model: str = "tiny") -> nn.Module:
    """The network of a part with its trained weights. The variable CHECKPOINT names another file for the generator.

    Raises ValueError for unknown names, and for BlazeFace, which is no PyTorch network.
    """
    path = checkpoint(part, model)
    if part == "face_detection" and model == "tiny":
        raise ValueError("BlazeFace has no PyTorch network here: OpenVINO reads its file, see `prepare`.")
    if model == "tiny":
        return load_tiny(path)[part == "syncnet"]
    return load_released(path, {"wav2lip": Wav2Lip, "syncnet": SyncNet, "face_detection": S3FD}[part]())


def prepare(part: str = "wav2lip", model: str = "tiny", precision: str = "FP32", items: Items = ()) -> Path:
    """The file of a part that `pipeline` reads, converted once and then cached.

    part: "wav2lip", "syncnet" or "face_detection" (for tiny that is BlazeFace's own .tflite file, at any precision).
    precision: of the weights. Only the generator has "INT8", which needs `items` to calibrate on as `quantize` does.
    Raises ValueError for unknown names.
    """
    if precision not in PRECISIONS or precision == "INT8" and part != "wav2lip":
        raise ValueError(f"There is no {precision} of {part!r}. There are {', '.join(PRECISIONS)}; INT8 of 'wav2lip'.")
    source = checkpoint(part, model)
    if part == "face_detection" and model == "tiny":
        return source
    convert = {"wav2lip": convert_generator, "syncnet": convert_expert, "face_detection": convert_detector}[part]
    items = list(items)

    @cached(
        f"{part}-{model}-{precision.lower()}",
        checkpoint=source,
        arguments={"items": _digest(items)},
        versions=("openvino", "nncf", "torch"),
    )
    def build(folder: Path) -> None:
        if precision == "INT8":
            quantize(prepare(part, model), items, folder / f"{part}.xml")
        else:
            convert(load(part, model), folder / f"{part}.xml", half=precision == "FP16")

    return build() / f"{part}.xml"


def checkpoint(part: str, model: str) -> Path:
    """The file or folder with the weights of a part, fetched if need be. Raises ValueError for unknown names."""
    if part not in CHECKPOINTS or model not in CHECKPOINTS[part]:
        raise ValueError(f"There is no {part!r} of {model!r}: choose from {', '.join(CHECKPOINTS)}; tiny, released.")
    name = CHECKPOINTS[part][model]
    return weights.resolve(name) if part == "wav2lip" else weights.fetch(name)


def _digest(items: Items) -> str:
    digest = hashlib.sha256()
    for item in items:
        for name in sorted(item):
            digest.update(name.encode() + np.ascontiguousarray(item[name]).tobytes())
    return digest.hexdigest()


def _trace(network: nn.Module, example: dict[str, Tensor], shape: list[int], outputs: list[str]) -> ov.Model:
    """Trace to an OpenVINO model with named inputs and outputs; `shape` replaces the first sizes of each input."""
    shapes = [shape + list(x.shape[len(shape) :]) for x in example.values()]
    return tracing.trace(network, example, shapes, outputs)


def _save(model: ov.Model, path: str | Path, half: bool) -> Path:
    """Write the IR whole or not at all. Raises ValueError for a path that is no .xml file."""
    path = Path(path)
    if path.suffix != ".xml":
        raise ValueError(f"An IR is written to an .xml file, not to {path.name}.")
    with replaced(path) as partial:
        ov.save_model(model, partial, compress_to_fp16=half)
    return path
