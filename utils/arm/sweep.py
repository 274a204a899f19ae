"""The comparison of one model on this processor and on an emulated one, and the file of all comparisons."""

from __future__ import annotations

import importlib
import json
import subprocess
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import date as calendar
from importlib import metadata
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from utils.arm import inputs, worker
from utils.files import replaced
from utils.models.portable import lift_transposed_convolutions
from utils.run import cases

PRECISIONS = ("f32", "f16")
# The largest difference, relative to the largest number of an output, that counts as agreement. Where activations are
# quantised (FakeQuantize), a number at the border of two steps may take either.
LIMITS = {"f32": 0.001, "f32, quantised": 0.1, "f16": 0.1}
TIMEOUT_S = 1800  # of one model under emulation


def conversions(folder: Path, wanted: Container[str]) -> Iterator[tuple[str, Path]]:
    """The models in a cache of conversions, of each wanted conversion the latest: "CONVERSION/MODEL" and the file."""
    latest = {}
    for place in sorted(folder.glob("*-*/manifest.json"), key=lambda path: path.stat().st_mtime):
        latest[place.parent.name.rpartition("-")[0]] = place.parent
    for name, place in sorted(latest.items()):
        if name in wanted:
            for path in sorted(place.rglob("*.xml")):
                if "tokenizer" not in path.stem:  # which needs an extension of OpenVINO
                    yield f"{name}/{path.relative_to(place).with_suffix('').as_posix()}", path


def graphs(folder: Path, wanted: Container[str]) -> Iterator[tuple[str, Path]]:
    """The models that wanted notebooks build and do not cache: "NOTEBOOK/MODEL", and the file in `folder`.

    They are what `graphs()` of a notebook's `convert` returns: names, and functions that build a model each.
    """
    for case in cases():
        if case in wanted:
            convert = importlib.import_module(f"notebooks.{case}.convert")
            for i, (name, build) in enumerate(convert.graphs().items()):
                path = folder / f"{case}_{i}.xml"
                ov.save_model(build(), path, compress_to_fp16=False)
                yield f"{case}/{name}", path


def compare(path: Path, emulator: Sequence[str]) -> dict[str, dict]:
    """How the model of a file computes on the emulated processor: for each of PRECISIONS a "result" ("agrees",
    "differs" or "does not run") with its "difference" or "error".

    emulator: the command before a Python program. Raises ValueError for a model that does not run here either.
    """
    model = ov.Core().read_model(path)
    quantised = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    given, expected = inputs.reference(model)
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(Path(scratch, "inputs.npz"), *given)
        command = [*emulator, worker.__file__, path, Path(scratch, "inputs.npz"), scratch, *PRECISIONS]
        try:
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, encoding="utf-8"
            )
            ending = f"the process ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"no answer within {TIMEOUT_S} s"
        found = {}
        for precision in PRECISIONS:
            result, error = Path(scratch, f"{precision}.npz"), Path(scratch, f"{precision}.txt")
            if result.is_file():
                limit = LIMITS["f32, quantised" if precision == "f32" and quantised else precision]
                found[precision] = judged(difference(list(np.load(result).values()), expected), limit)
            else:
                message = last_line(error.read_text(encoding="utf-8")) if error.is_file() else ending
                found[precision] = {"result": "does not run", "error": message}
        return found


def difference(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference of outputs: of numbers relative to the largest, of integers the share that differs."""
    largest = 0.0
    for one, other in zip(ours, expected, strict=True):
        if one.shape != other.shape:
            return 1.0
        if other.dtype.kind == "f":
            gap = np.abs(one.astype(float) - other).max(initial=0)
            share = gap / max(float(np.abs(other).max(initial=0)), 1e-12)
        else:
            share = float((one != other).mean()) if other.size else 0.0
        largest = max(largest, share if np.isfinite(share) else 1.0)
    return float(largest)


def judged(value: float, limit: float) -> dict:
    """The entry of a precision at which the model ran."""
    return {"result": "agrees" if value <= limit else "differs", "difference": float(f"{value:.3g}")}


def last_line(error: str) -> str:
    """The last line of an error of OpenVINO, which says what happened, without the places in its source."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:160]


def smallest(folder: Path) -> dict[str, Path]:
    """The smallest models of the three faults, and of the forms that avoid them, written to a folder; by name."""
    models = {}
    for name in ("product with a converted boolean", "choice by a boolean"):
        x = ops.parameter([-1, 6], np.float32)
        given = ops.greater(x, np.float32(0))
        product = name.startswith("product")
        y = ops.multiply(x, ops.convert(given, "f32")) if product else ops.select(given, x, np.float32(0))
        models[name] = ov.Model([y], [x], "masked")
    kernel = np.random.default_rng(0).standard_normal((6, 5, 4), np.float32)
    x = ops.parameter([1, 6, -1], np.float32)
    y = ops.convolution_backprop_data(x, kernel, [2], pads_begin=[1], pads_end=[1])
    models["transposed convolution along one axis"] = ov.Model([y], [x], "upsampling")
    plain = models["transposed convolution along one axis"]
    models["transposed convolution lifted to two axes"] = lift_transposed_convolutions(plain.clone())
    models["attention whose rows share a mask"] = attention(1)
    models["attention with a mask for each row"] = attention(-1)
    paths = {}
    for i, (name, model) in enumerate(models.items()):
        paths[name] = folder / f"smallest_{i}.xml"
        ov.save_model(model, paths[name], compress_to_fp16=False)
    return paths


def attention(rows: int) -> ov.Model:
    """Attention of two heads that reads its cache: queries, keys and values [batch, 2, tokens, 16], and a mask.

    rows: of the mask [rows, 1, tokens, all tokens]: 1, or -1 for one of each row of the batch.
    """
    query, key, value = (ops.parameter([-1, 2, -1, 16], np.float32) for _ in range(3))
    mask = ops.parameter([rows, 1, -1, -1], np.float32)
    beams = ops.parameter([-1], np.int32, "beam_idx")
    beams.output(0).set_names({"beam_idx"})
    batch = ops.gather(ops.shape_of(query), np.array([0]), np.int64(0))
    empty = ops.broadcast(np.float32(0), ops.concat([batch, np.array([2, 0, 16])], 0))  # a cache without tokens
    caches, sinks = [], []
    for name, new in (("keys", key), ("values", value)):
        past = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, 2, -1, 16]))
        caches.append(ops.concat([ops.gather(past, beams, np.int64(0)), new], 2))  # [batch, 2, all tokens, 16]
        sinks.append(ops.assign(caches[-1], name))
    y = ops.scaled_dot_product_attention(query, *caches, mask)
    return ov.Model([ops.result(y)], sinks, [query, key, value, mask, beams], "attention")


def update(path: Path, rows: Mapping[str, Mapping], emulator: str) -> None:
    """Write rows into the file of all comparisons, whose other rows stay if they are of the same OpenVINO."""
    version = metadata.version("openvino")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        stored = {}
    kept = stored.get("models", {}) if stored.get("openvino") == version else {}
    day = calendar.today().isoformat()
    models = kept | {name: {"date": day, **row} for name, row in rows.items()}
    content = {
        "label": "emulated, correctness only",
        "openvino": version,
        "emulator": emulator,
        "limits": LIMITS,
        "models": dict(sorted(models.items())),
    }
    with replaced(path) as partial:
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def text(row: Mapping[str, Mapping]) -> Iterable[str]:
    """A row in words, for the command's output."""
    for precision in PRECISIONS:
        entry = row[precision]
        yield f"{precision} {entry['result']} ({entry.get('difference', entry.get('error'))})"
