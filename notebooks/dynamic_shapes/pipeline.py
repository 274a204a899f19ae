"""Run an OpenVINO model on inputs of many lengths at a bounded cost in time and memory.

Needs openvino and numpy, nothing else: copy this file into your project.

* `Bucketed(model, buckets)`            pads each request to one of a few lengths, masks the padding, cuts the results
* `choose_buckets(lengths, count)`      the lengths that waste least on a sample of requests
* `padding_share(lengths, buckets)`     how much of the computed length is padding
* `dynamic_operations(model)`           which operations of a model have no fixed shape
* `layer_types(compiled)`               which operations a compiled model executes
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov


def layer_types(compiled: ov.CompiledModel) -> Counter:
    """How many operations of each type a compiled model executes; constants, inputs and outputs do not count.

    `Subgraph` is code that the plugin generates for several operations together (Snippets).
    """
    types = Counter(node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())
    for name in ("Const", "Input", "Output"):
        types.pop(name, None)
    return types


def dynamic_operations(model: ov.Model) -> list[str]:
    """The operations of a model with a dynamic result, each as "type [1,1..512,256]"."""
    return [
        f"{node.get_type_name()} {output.get_partial_shape()}"
        for node in model.get_ordered_ops()
        for output in node.outputs()
        if output.get_partial_shape().is_dynamic
    ]


# --- Buckets ------------------------------------------------------------------------------------------------------


def choose_buckets(lengths: Sequence[int], count: int, longest: int | None = None) -> list[int]:
    """At most `count` lengths, ascending, such that padding each of `lengths` to the next one adds least in total.

    longest: the longest request that may come, which becomes the last bucket; by default the longest of `lengths`.
    Dynamic programming over the different lengths: the best k buckets for the m shortest lengths extend the best k - 1
    buckets for fewer. Raises ValueError for an empty sample, for lengths below 1 or above `longest`, and for no bucket.
    """
    lengths = np.asarray(lengths, np.int64).ravel()
    longest = int(lengths.max(initial=0)) if longest is None else int(longest)
    if not len(lengths) or lengths.min() < 1 or lengths.max() > longest:
        raise ValueError(f"lengths must hold at least one length, each from 1 to {longest}. Leave others out.")
    if count < 1:
        raise ValueError(f"{count} buckets hold nothing. Give a count of at least 1.")
    sizes = np.unique([*lengths, longest])
    below = np.searchsorted(np.sort(lengths), sizes, side="right")  # requests up to each size
    below = np.concatenate([[0], below])
    count = min(count, len(sizes))
    best = np.full((count + 1, len(sizes) + 1), np.inf)  # computed length of the first m sizes in k buckets
    best[:, 0] = 0
    previous = np.zeros(best.shape, np.int64)  # how many of these sizes are left to the first k - 1 buckets
    for k in range(1, count + 1):
        for m in range(1, len(sizes) + 1):
            totals = best[k - 1, :m] + sizes[m - 1] * (below[m] - below[:m])
            previous[k, m] = totals.argmin()
            best[k, m] = totals[previous[k, m]]
    buckets, m = [], len(sizes)
    for k in range(count, 0, -1):
        if m:
            buckets.append(int(sizes[m - 1]))
            m = previous[k, m]
    return buckets[::-1]


def padding_share(lengths: Sequence[int], buckets: Sequence[int]) -> float:
    """The share of padding in all that is computed when each of `lengths` is padded to the next bucket."""
    lengths, buckets = np.asarray(lengths), np.sort(buckets)
    if not lengths.size:
        raise ValueError("There are no lengths. Give at least one.")
    if lengths.max() > buckets[-1]:
        raise ValueError(f"No bucket holds the length {lengths.max()}: the largest is {buckets[-1]}. Add one.")
    computed = buckets[np.searchsorted(buckets, lengths)]
    return float(1 - lengths.sum() / computed.sum())


# --- The runner ---------------------------------------------------------------------------------------------------


@dataclass
class Usage:
    """What a runner has done so far.

    hits: requests whose shapes had been run before. compiled, evicted: models. compile_s: seconds of compilation, those
    of `warm_up` included. by_bucket: requests for each bucket.
    """

    requests: int = 0
    hits: int = 0
    compiled: int = 0
    evicted: int = 0
    compile_s: float = 0.0
    length: int = 0
    computed_length: int = 0
    by_bucket: Counter = field(default_factory=Counter)

    @property
    def padding(self) -> float:
        """The share of padding in all that was computed."""
        return 1 - self.length / self.computed_length if self.computed_length else 0.0

    def __str__(self) -> str:
        buckets = ", ".join(f"{count} padded to {bucket}" for bucket, count in sorted(self.by_bucket.items()))
        models = "1 model" if self.compiled == 1 else f"{self.compiled} models"
        return (
            f"{self.requests} requests, {self.hits} hits; {models} compiled in {self.compile_s:.2f} s, "
            f"{self.evicted} evicted; {100 * self.padding:.0f} % padding; {buckets or 'no request'}"
        )


class _Compiled:
    """A compiled model with requests that wait for work. size: an estimate of its memory in bytes."""

    def __init__(self, compiled: ov.CompiledModel, size: int) -> None:
        self.compiled, self.size = compiled, size
        self.waiting: list[ov.InferRequest] = []


class Bucketed:
    """Runs a model with a dynamic length on one of a few lengths, so that kernels are generated for those only.

        runner = Bucketed("model.xml", [64, 128, 512], mask="mask")
        results = runner({"x": x})  # x [batch, n, 256] with n up to 512; results as if the model had run on x alone

    Each input that is dynamic along `axis` is padded at its end, each result that is dynamic along it is cut, and must
    have the length of the inputs or a multiple of it. The model must ignore what the mask hides. Threads may share a
    runner.
    """

    def __init__(
        self,
        model: ov.Model | str | Path,
        buckets: Sequence[int],
        *,
        axis: int = 1,
        mask: str | None = None,
        pad_values: Mapping[str, float] | None = None,
        static: bool = False,
        memory_mb: float = 1000,
        device: str = "CPU",
        properties: Mapping | None = None,
    ) -> None:
        """axis: of the length. mask: the input [batch, length] that the runner fills itself, with 1 for what is given
        and 0 for padding. pad_values: of inputs that are not padded with 0.

        One dynamic model runs all buckets, holds its weights once, and keeps a set of kernels for each bucket. With
        `static` a model is compiled for each shape, and the latest stay that fit into `memory_mb` (an estimate:
        constants and all intermediate results).

        Raises ValueError for buckets below 1, and for names or an axis that do not fit the model.
        """
        self._core = ov.Core()
        self._model = model if isinstance(model, ov.Model) else self._core.read_model(model)
        if axis < 0:
            raise ValueError(f"The axis is {axis}. Count it from the front: 0 is the first dimension.")
        self.buckets = sorted({int(bucket) for bucket in buckets})
        if not self.buckets or self.buckets[0] < 1:
            raise ValueError(f"The buckets are {list(buckets)}. Give at least one length, each at least 1.")
        self.axis, self.mask, self.static, self.memory_mb = axis, mask, static, memory_mb
        self._inputs = [port.any_name for port in self._model.inputs]
        self._padded = [port.any_name for port in self._model.inputs if self._is_dynamic(port)]
        self._cut = [self._is_dynamic(port) for port in self._model.outputs]
        self._pad_values = dict(pad_values or {})
        if not self._padded:
            raise ValueError(f"No input of the model is dynamic along axis {axis}. Reshape it, or give another axis.")
        if unknown := {*self._pad_values, *([mask] if mask else [])} - {*self._padded}:
            raise ValueError(f"{sorted(unknown)[0]!r} is no input with a length. There are: {', '.join(self._padded)}.")
        self._device, self._properties = device, dict(properties or {})
        self._models: OrderedDict[tuple, _Compiled] = OrderedDict()  # the latest used is the last
        self._ready: set[tuple] = set()  # shapes that ran and whose model is still there
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._usage = Usage()

    def _is_dynamic(self, port: ov.Output) -> bool:
        shape = port.get_partial_shape()
        return len(shape) > self.axis and shape[self.axis].is_dynamic

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results, in the order of the model's outputs, for arrays by the names of the inputs.

        Raises ValueError for missing or unknown inputs, for lengths that differ, for one above the last bucket, and for
        a result whose length is no multiple of that of the inputs.
        """
        arrays, length = self._checked(inputs)
        bucket = next(bucket for bucket in self.buckets if bucket >= length)
        arrays = {name: self._pad(name, array, bucket) for name, array in arrays.items()}
        with self._request(arrays) as (request, hit):
            request.infer(arrays, share_inputs=True)
            found = zip(request.output_tensors, self._cut, strict=True)
            results = [self._shortened(x.data, length, bucket) if cut else x.data.copy() for x, cut in found]
        with self._lock:
            self._usage.requests += 1
            self._usage.hits += hit
            self._usage.length += length
            self._usage.computed_length += bucket
            self._usage.by_bucket[bucket] += 1
        return results

    def warm_up(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Prepare all buckets with an example of the inputs, so that no request waits. `usage` counts no request."""
        arrays, _ = self._checked(inputs)
        for bucket in self.buckets:
            short = {name: self._first(array) if name in self._padded else array for name, array in arrays.items()}
            padded = {name: self._pad(name, array, bucket) for name, array in short.items()}
            with self._request(padded) as (request, _):
                request.infer(padded, share_inputs=True)

    def usage(self) -> Usage:
        """A copy of what the runner has done so far."""
        with self._lock:
            return Usage(**{**vars(self._usage), "by_bucket": self._usage.by_bucket.copy()})

    def models_mb(self) -> float:
        """The estimated memory of the compiled models in MB."""
        with self._lock:
            return sum(model.size for model in self._models.values()) / 1e6

    # --- shapes

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
        """The inputs as arrays, with the mask, and their length."""
        needed = [name for name in self._inputs if name != self.mask]
        if {*inputs} - {self.mask} != {*needed}:
            raise ValueError(f"The inputs are {', '.join(inputs) or 'none'}. Give: {', '.join(needed)}.")
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        for name in self._padded:
            rank = len(self._model.input(name).get_partial_shape())
            if name in arrays and arrays[name].ndim != rank:
                raise ValueError(
                    f"{name} has {arrays[name].ndim} dimensions, and the model takes {rank}. Add the batch?"
                )
        lengths = {name: arrays[name].shape[self.axis] for name in self._padded if name in arrays}
        length = next(iter(lengths.values()))
        if len({*lengths.values()}) > 1 or length < 1:
            raise ValueError(f"The lengths are {lengths}. Give inputs of one length, at least 1.")
        if length > self.buckets[-1]:
            raise ValueError(f"The length {length} is above the last bucket, {self.buckets[-1]}. Add a bucket, or cut.")
        if self.mask and self.mask not in arrays:
            batch = arrays[next(iter(lengths))].shape[0]
            arrays[self.mask] = np.ones((batch, length), self._type(self.mask))
        return arrays, length

    def _type(self, name: str) -> np.dtype:
        return self._model.input(name).get_element_type().to_dtype()

    def _first(self, array: np.ndarray) -> np.ndarray:
        return np.take(array, [0], self.axis)

    def _pad(self, name: str, array: np.ndarray, bucket: int) -> np.ndarray:
        """The array in the input's type, and up to the bucket if it has a length."""
        array = np.ascontiguousarray(array, self._type(name))
        if name not in self._padded or array.shape[self.axis] == bucket:
            return array
        shape = (*array.shape[: self.axis], bucket, *array.shape[self.axis + 1 :])
        padded = np.full(shape, self._pad_values.get(name, 0), array.dtype)
        padded[(slice(None),) * self.axis + (slice(array.shape[self.axis]),)] = array
        return padded

    def _shortened(self, result: np.ndarray, length: int, bucket: int) -> np.ndarray:
        """A copy of the result for what was given; it may have a multiple of the length, such as 256 samples each."""
        multiple, rest = divmod(result.shape[self.axis], bucket)
        if rest:
            raise ValueError(
                f"A result has the length {result.shape[self.axis]} in the bucket of {bucket}, which is no multiple of "
                "it, so nobody knows where to cut. Take buckets for models that keep or multiply the length."
            )
        return result[(slice(None),) * self.axis + (slice(multiple * length),)].copy()

    # --- compiled models

    @contextmanager
    def _request(self, arrays: Mapping[str, np.ndarray]):
        """A request of the model for these shapes, which nobody else uses meanwhile, and whether they ran before."""
        shapes = tuple((name, array.shape) for name, array in arrays.items())
        model = self._compiled(shapes)
        with self._lock:
            hit = shapes in self._ready
            request = model.waiting.pop() if model.waiting else None
        request = request or model.compiled.create_infer_request()
        try:
            yield request, hit
        finally:
            with self._lock:
                if model in self._models.values():  # otherwise it was evicted meanwhile
                    self._ready.add(shapes)
                model.waiting.append(request)

    def _compiled(self, shapes: tuple) -> _Compiled:
        key = shapes if self.static else ()
        with self._lock:
            if key in self._models:
                self._models.move_to_end(key)
                return self._models[key]
        with self._compiling:  # one at a time: a thread that waited here for the same shapes finds them
            with self._lock:
                if key in self._models:
                    return self._models[key]
            begin = perf_counter()
            model = self._model.clone()
            if self.static:
                model.reshape({name: list(shape) for name, shape in shapes})
            entry = _Compiled(self._core.compile_model(model, self._device, self._properties), _size(model))
            with self._lock:
                self._usage.compiled += 1
                self._usage.compile_s += perf_counter() - begin
                self._models[key] = entry
                while len(self._models) > 1 and sum(m.size for m in self._models.values()) > self.memory_mb * 1e6:
                    self._ready.discard(self._models.popitem(last=False)[0])
                    self._usage.evicted += 1
        return entry


def _size(model: ov.Model) -> int:
    """Bytes of the constants of a model, and of all results that have a fixed shape."""
    outputs = [output for node in model.get_ops() for output in node.outputs() if output.get_partial_shape().is_static]
    return sum(int(np.prod(output.get_shape())) * output.get_element_type().size for output in outputs)
