"""How good and how fast fused attention is: `python -m notebooks.sdpa_enabling.measuring` measures time and memory of
one layer against the length, into results/bench/sdpa_enabling.json. The notebook measures the language model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from notebooks.sdpa_enabling.pipeline import FUSED, fuse_attention, make_stateful
from utils import bench, compare, preflight, report
from utils.models import llm_speed
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, perplexity, tokenize

METRIC = "perplexity of 256 tokens"
FORMS = ("by hand", "after the pass", "SDPA export")  # of attention in the language model
LENGTHS = (128, 512, 2048, 8192)  # tokens
LONG = 4096  # tokens; above, one round and one measured call are enough
HEADS, KV_HEADS, SIZE = 9, 3, 64  # SmolLM2's
PROMPT, STEPS = 1024, 16  # tokens, of the workloads in the notebook
FIRST, DECODE = f"first token of a {PROMPT}-token prompt", f"{STEPS} tokens after {PROMPT} tokens"
LAYERS = ("openvino by hand", "openvino Subgraph", "openvino fused")
IN_BOTH_PRECISIONS = (*LAYERS, "torch eager sdpa")
IN_FP32 = ("torch eager by hand", "torch.compile by hand", "onnxruntime by hand")
BF16_PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}


# --- Parity and quality of the language model -----------------------------------------------------------------


def fused(folder: Path) -> ov.Model:
    """The model of an IR folder after `fuse_attention`."""
    model = ov.Core().read_model(folder / MODEL_XML)
    fuse_attention(model)
    return model


def parity(folder: Path, reference, device: str = "CPU") -> list[dict]:
    """Before and after the pass, and PyTorch, in FP32: logits of 64 tokens, and 32 tokens chosen after them."""
    import torch

    ids = tokenize(folder, "evaluation")[:, :64]
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids)).logits.numpy()
    before, after = (Session(m, device, **FP32_PROPERTIES) for m in (folder / MODEL_XML, fused(folder)))
    logits = before.prefill(ids).copy()
    return [
        compare.parity("written by hand: logits", logits, expected, 1e-2),
        compare.parity("after the pass: logits", after.prefill(ids), expected, 1e-2),
        compare.parity("after the pass: 32 greedy tokens", after.generate(ids, 32), before.generate(ids, 32), 0),
    ]


def quality(folders: dict[str, Path], reference, device: str = "CPU") -> list[dict]:
    """Perplexity of each of FORMS in FP32 and at the device's own precision; two graphs are broken.

    Only the form after the pass has a limit; the others show where its perplexity should be.
    """
    import torch

    text = tokenize(folders["by hand"], "evaluation")[:, :256]
    with torch.no_grad():
        expected = perplexity(lambda ids: reference(torch.from_numpy(ids)).logits.numpy(), text)
    limit, rows = 1.01 * expected, []
    models = (folders["by hand"] / MODEL_XML, fused(folders["by hand"]), folders["fused"] / MODEL_XML)
    for form, model in zip(FORMS, models, strict=True):
        for precision, properties in {"FP32": FP32_PROPERTIES, bench.arithmetic("FP16"): {}}.items():
            value = perplexity(Session(model, device, **properties).prefill, text)
            needed = limit if form == "after the pass" else None
            rows.append(compare.quality(f"{METRIC}, {form}", precision, value, expected, needed, "lower"))
    for name, factor in (("scale 8 times as large", 8.0), ("scale 8 times as small", 0.125)):
        broken = fused(folders["by hand"])
        for node in broken.get_ops():
            if node.get_type_name() == FUSED:
                changed = ov.opset13.multiply(node.input_value(4), np.float32(factor))
                node.input(4).replace_source_output(changed.output(0))
        value = perplexity(Session(broken, device, **FP32_PROPERTIES).prefill, text)
        rows.append(compare.control(f"{METRIC}, after the pass", name, value, limit, "lower"))
    return rows


# --- Speed of the language model --------------------------------------------------------------------------------


@bench.live
def generation(folders: dict[str, Path], checkpoint: Path, rounds: int = 2) -> list[dict]:
    """Speed rows of the language model at the processor's faster precision, each setting in a process of its own."""
    precision = bench.arithmetic("FP16")
    places = (folders["by hand"], folders["by hand"], folders["fused"])
    settings = [bench.Setting(f"openvino {form}", precision, start_openvino, (form, place))
                for form, place in zip(FORMS, places, strict=True)]  # fmt: skip
    precision = bench.torch_precision()
    settings += [bench.Setting(f"torch eager {name}", precision, start_torch, (checkpoint, attention, precision))
                 for name, attention in (("by hand", "eager"), ("sdpa", "sdpa"))]  # fmt: skip
    workloads = [bench.Workload(FIRST, PROMPT, "tokens/s"), bench.Workload(DECODE, STEPS, "tokens/s")]
    return bench.compare(settings, workloads, rounds)


def start_openvino(form: str, folder: Path) -> dict[str, Callable]:
    session = Session(fused(folder) if form == "after the pass" else folder / MODEL_XML)
    return _workloads(session.prefill, session.extend)


def start_torch(checkpoint: Path, attention: str, precision: str) -> dict[str, Callable]:
    import torch

    model, cache = llm_speed.load_torch(checkpoint, precision, attention), {}

    def extend(ids: np.ndarray) -> None:
        with torch.inference_mode():
            output = model(torch.from_numpy(ids), past_key_values=cache.get("past"), use_cache=True, logits_to_keep=1)
            cache["past"] = output.past_key_values

    return _workloads(lambda ids: (cache.clear(), extend(ids)), extend)


def _workloads(prefill: Callable, extend: Callable) -> dict[str, Callable]:
    """Reading the prompt, and the steps after it; each further call of these finds a cache that has grown by them."""
    prompt = np.random.default_rng(0).integers(100, 40_000, (1, PROMPT))
    return {FIRST: lambda: prefill(prompt), DECODE: lambda: [extend(prompt[:, :1]) for _ in range(STEPS)]}


# --- One layer against the length -----------------------------------------------------------------------------


def layer_rows(lengths: Sequence[int] = LENGTHS, rounds: int = 2) -> list[dict]:
    """Speed rows of one attention layer: reading a text, and one more token.

    Each runtime at each length has a process of its own. They are measured alternately, the longest texts once.
    """
    jobs = [(name, p) for name in IN_BOTH_PRECISIONS for p in bench.torch_precisions()]
    jobs += [(name, "FP32") for name in IN_FP32]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        preflight.in_child(_write_layers, Path(folder))
        for length in lengths:
            taken: dict[tuple, list] = {job: [] for job in jobs}
            for _ in range(1 if length > LONG else rounds):
                for job in jobs:
                    taken[job].append(preflight.in_child(_layer, *job, Path(folder), length))
            for i, workload in enumerate((f"read {length} tokens", f"one token after {length}")):
                timings = {job: bench.Timing.of([ms for one in runs for ms in one[i]]) for job, runs in taken.items()}
                torch = {job: timing for job, timing in timings.items() if "torch" in job[0]}
                for (name, precision), timing in timings.items():
                    best, same = (
                        min((t for (_, p), t in torch.items() if p in wanted), key=lambda t: t.median_ms)
                        for wanted in (bench.torch_precisions(), (precision,))
                    )
                    peak = max(one[2] for one in taken[name, precision]) / 1e6
                    options = {"torch": best, "peak_rss_mb": peak, "label": "one layer, random weights, speed only"}
                    row = bench.row(name, precision, workload, timing, **options)
                    rows.append(row | {"ratio_at_precision": same.median_ms / timing.median_ms})
    return rows


def _network():
    import torch

    from notebooks.sdpa_enabling.network import Attention

    torch.manual_seed(0)
    return Attention("masked_fill", heads=HEADS, kv_heads=KV_HEADS, size=SIZE).eval()


def _write_layers(folder: Path) -> None:
    from notebooks.sdpa_enabling.convert import to_ir, to_onnx

    model = to_ir(_network())
    ov.save_model(model, folder / "openvino Subgraph.xml", compress_to_fp16=False)
    make_stateful(model)
    ov.save_model(model, folder / "openvino by hand.xml", compress_to_fp16=False)
    fuse_attention(model)
    ov.save_model(model, folder / "openvino fused.xml", compress_to_fp16=False)
    to_onnx(_network(), folder / "layer.onnx")


def _layer(name: str, precision: str, folder: Path, length: int) -> tuple[list[float], list[float], int]:
    """Milliseconds of reading, milliseconds of one more token, and the peak memory in bytes of this process."""
    step = _steps(name, precision, folder)
    x = np.random.default_rng(0).standard_normal((1, length, HEADS * SIZE), np.float32)
    reads, ones = [], []
    for _ in range(2 if length > LONG else 3):  # the first one allocates memory and compiles
        begin = perf_counter()
        step(x, True)
        reads.append((perf_counter() - begin) * 1e3)
        ones.append([])
        for _ in range(4):
            begin = perf_counter()
            step(x[:, :1], False)
            ones[-1].append((perf_counter() - begin) * 1e3)
    return reads[1:], sum(ones[1:], []), bench.peak_bytes()


def _steps(name: str, precision: str, folder: Path) -> Callable[[np.ndarray, bool], None]:
    """A function of x [1, new, width] and whether the cache is emptied first."""
    if name.startswith("openvino"):
        properties = FP32_PROPERTIES if precision == "FP32" else BF16_PROPERTIES
        request = ov.Core().compile_model(folder / f"{name}.xml", "CPU", properties).create_infer_request()
        if name != "openvino Subgraph":

            def stateful(x: np.ndarray, first: bool) -> None:
                if first:
                    request.reset_state()
                request.infer({"x": x, "beam_idx": np.zeros(1, np.int32)}, share_inputs=True)

            return stateful

        def run(x: np.ndarray, cache: list) -> list:
            result = request.infer([x, *cache], share_inputs=True, share_outputs=True)
            return [result[1].copy(), result[2].copy()]
    elif name.startswith("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / "layer.onnx", providers=["CPUExecutionProvider"])

        def run(x: np.ndarray, cache: list) -> list:
            return session.run(None, {"x": x, "past_keys": cache[0], "past_values": cache[1]})[1:]
    else:
        import torch

        from notebooks.sdpa_enabling.network import SPELLINGS

        dtype = {"BF16": torch.bfloat16, "FP32": torch.float32}[precision]
        network = _network().to(dtype)
        network.attend = SPELLINGS["F.scaled_dot_product_attention" if "sdpa" in name else "masked_fill"]
        call = torch.compile(network, dynamic=True) if "compile" in name else network

        def run(x: np.ndarray, cache: list) -> list:
            with torch.inference_mode():
                return call(torch.from_numpy(x).to(dtype), *(torch.as_tensor(one, dtype=dtype) for one in cache))[1:]

    empty = [np.zeros((1, KV_HEADS, 0, SIZE), np.float32)] * 2
    cache = empty

    def with_cache(x: np.ndarray, first: bool) -> None:
        nonlocal cache
        cache = run(x, empty if first else cache)

    return with_cache


def main() -> None:
    preflight.check(ram_gb=18, disk_gb=1, what="Attention by hand over 8,192 tokens")
    with bench.exclusive() as load:
        rows = layer_rows()
    report.save_bench("sdpa_enabling", rows, load)


if __name__ == "__main__":
    main()
