"""`python -m notebooks.llm_methods.measuring` measures all methods, the important ones first, and goes on where it was
stopped: a row in results/bench/llm_methods-rows.json is written after each. `--speed` measures only the speed of
weights, activations, caches and peers, once the compressed models are there, and `--quality` everything else; `--only
NAME` measures one method again."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic

import psutil

from notebooks.llm_methods import convert
from notebooks.llm_methods.measuring import cache, decoding, peers, weights
from notebooks.llm_methods.measuring.store import Rows, place
from notebooks.llm_methods.pipeline import Method, named, of
from utils import bench, preflight
from utils.weights import resolve

KINDS = ("weights", "activations", "cache", "prompt", "decoding", "reading")
PEERS = "peers"  # the kind of other runtimes, of which only the speed is measured
WITH_TIMES = ("prompt", "decoding", "reading")  # the others are timed by `measure_speed`
LENGTHS = list(cache.LENGTHS)  # of the long prompts; --lengths replaces them
ENGINES = {"stateful": cache.stateful, "paged": cache.paged}
TIMED = {"stateful": cache.stateful_token, "paged": cache.paged_token}
INT8, INT4 = named("INT8 asymmetric"), named("INT4 asymmetric")  # the weights of other methods
DRAFTS = {"speculation, fewer layers": convert.draft, "speculation, trained draft": convert.trained_draft}
Job = tuple[Method, Callable[[], dict]]


def jobs(model: str) -> Iterator[Job]:
    """Each method that can be measured, with the function that measures what `measure_speed` does not."""
    base = convert.prepare(model)
    methods = [method for method in of(KINDS) if not method.why]
    order = [method for kind in KINDS for method in methods if method.kind == kind and not method.slow]
    for method in [*order, *(method for method in methods if method.slow)]:
        yield method, lambda method=method: MEASURED_BY[method.kind](method, model, base)


def _weights(method: Method, model: str, base: Path) -> dict:
    folder = convert.prepare(model, method.call, method.name)
    row = {"call": method.call, "model_mb": weights.size_mb(folder)}
    row |= {f"compress_{key}": value for key, value in convert.cost(folder).items()}
    row |= preflight.in_child(weights.memory, folder, what=method.name)
    return row | preflight.in_child(weights.quality, folder, what=method.name)


def _activations(method: Method, model: str, base: Path) -> dict:
    folder = convert.prepare(model, INT8.call, INT8.name)
    quality = preflight.in_child(weights.with_properties, folder, eval(method.call), what=method.name)
    return {"call": method.call} | quality


def _cache(method: Method, model: str, base: Path) -> dict:
    """Both engines; where one fails or ends the process, its error is the result."""
    row: dict = {"call": method.call}
    for engine, function in ENGINES.items():
        try:
            row |= preflight.in_child(function, base, eval(method.call), what=f"{method.name}, {engine}")
            row[f"{engine}_error"] = None
        except Exception as error:  # the trap is what we are after
            row[f"{engine}_error"] = _first_line(error)
    return row


def _prompt(method: Method, model: str, base: Path) -> dict:
    row = {"call": method.call}
    row |= preflight.in_child(cache.recall, base, method.call, None, LENGTHS, what=method.name)
    row |= preflight.in_child(cache.prefix, base, method.call, what=method.name)
    if method.mechanism in ("reading", "sparse attention"):
        row |= preflight.in_child(cache.paged, base, {"KV_CACHE_PRECISION": "f32"}, method.call, what=method.name)
    return row


def _decoding(method: Method, model: str, base: Path) -> dict:
    places = {"INT4": convert.prepare(model, INT4.call, INT4.name), "adapter": convert.ADAPTER}
    if method.name in DRAFTS:
        places["draft"] = DRAFTS[method.name](model)
    folder = convert.prepare(model, INT8.call, INT8.name)
    return {"call": method.call} | _shared().call(decoding.measure, method, folder, places)


@functools.cache
def _shared() -> preflight.Child:
    """The process of all ways to choose tokens, so that greedy answers are computed once."""
    return preflight.Child("Decoding")


def _reading(method: Method, model: str, base: Path) -> dict:
    source = resolve(convert.MODELS[model]["checkpoint"]) if method.name == "GGUF file" else base
    checkpoint = convert.checkpoint_folder(model)
    return {"call": method.call} | preflight.in_child(decoding.read, method.name, source, checkpoint, what=method.name)


MEASURED_BY = {
    "weights": _weights,
    "activations": _activations,
    "cache": _cache,
    "prompt": _prompt,
    "decoding": _decoding,
    "reading": _reading,
}


def measure(model: str, rows: Rows, minutes: float, only: str = "", kinds: Sequence[str] = KINDS) -> None:
    """Measure what has no row yet, or the method `only` again."""
    end = monotonic() + 60 * minutes
    chosen = [job for job in jobs(model) if only in ("", job[0].name) and job[0].kind in kinds]
    if not chosen:
        raise ValueError(f"There is no method {only!r}. `python -m notebooks.llm_methods --list` names them.")
    for number, (method, function) in enumerate(chosen, 1):
        known = rows.rows.get((method.kind, method.name), {})
        percent = round(psutil.cpu_percent(interval=0.5))
        busy = {"busy_percent": percent} if method.kind in WITH_TIMES else {}
        again = busy and known.get("busy_percent", 0) > bench.BUSY_PERCENT >= percent  # a busy machine's times
        if not only and known.get("call") == method.call and _complete(method.kind, known) and not again:
            continue
        if monotonic() > end:
            print(f"{minutes:.0f} minutes are over: {len(chosen) - number + 1} methods are left for the next run.")
            return
        print(f"{number}/{len(chosen)} {method.kind}: {method.name}", flush=True)
        begin = monotonic()
        try:
            fields = {"error": None} | busy | function()
        except Exception as error:  # told in the row; the next method goes on
            fields = {"call": method.call, "error": _first_line(error)}
        if known.get("call") != method.call:  # what an earlier call gave is no longer true
            rows.rows.pop((method.kind, method.name), None)
        rows.add(method.kind, method.name, fields)
        print(f"  {monotonic() - begin:.0f} s  {_short(fields)}", flush=True)


def _complete(kind: str, row: dict) -> bool:
    """Whether nothing of a row is left to measure but the speed of `measure_speed`."""
    wanted = {"prompt": [f"recall_{length}" for length in LENGTHS], "weights": ["perplexity", "right", "running_mb"]}
    return "error" in row or all(field in row for field in wanted.get(kind, []))


def make_models(model: str, rows: Rows, only: str = "") -> None:
    """Compress what is missing among the models of the measured weight methods, before anything is timed."""
    own = [row for row in rows.of("weights") if "model_mb" in row and only in ("", row["name"])]
    minutes = sum(row.get("compress_seconds", 0) for row in own) / 60
    print(f"{len(own)} compressed models: those that are missing are made, {minutes:.0f} minutes for all.", flush=True)
    for number, row in enumerate(own, 1):
        begin = monotonic()
        convert.prepare(model, row["call"], row["name"])
        print(f"{number}/{len(own)} model: {row['name']}, {monotonic() - begin:.0f} s", flush=True)


def measure_speed(model: str, rows: Rows, only: str = "", kinds: Sequence[str] = (*KINDS, PEERS)) -> None:
    """Speed of every weight method, the FP16 model first and last, of activations, of caches and of peers."""

    def chosen(kind: str) -> list[dict]:
        return [row for row in rows.of(kind) if kind in kinds and only in ("", row["name"])]

    own = [row for row in chosen("weights") if "model_mb" in row]
    for row in own + [row | {"last": True} for row in own if row["name"] == "FP16"]:
        fields = _busy() | weights.speed(row["name"], convert.prepare(model, row["call"], row["name"]))
        if row.get("last"):
            fields = {"tokens_per_s_at_the_end": fields["tokens_per_s"]}
        _add(rows, row, fields)
    for row in chosen("activations"):
        int8 = convert.prepare(model, INT8.call, INT8.name)
        _add(rows, row, _busy() | weights.speed("INT8", int8, eval(row["call"])))
    base = convert.prepare(model)
    for row in chosen("cache"):
        fields = _busy()
        for engine, function in TIMED.items():
            try:
                fields |= preflight.in_child(function, base, eval(row["call"]), what=f"{row['name']}, {engine}")
            except Exception as error:  # what fails has no time
                print(f"{row['name']}, {engine}: {_first_line(error)}")
        _add(rows, row, fields)
    if PEERS in kinds and not only:
        peers.measure(model, rows)


def _busy() -> dict:
    return {"busy_percent": round(psutil.cpu_percent(interval=1.0))}


def _add(rows: Rows, row: dict, fields: dict) -> None:
    rows.add(row["kind"], row["name"], fields)
    print(f"{row['name']}: {_short(fields)}", flush=True)


def _first_line(error: Exception) -> str:
    if ended := re.search(r"ended with status (-?\d+)", str(error)):
        return f"ends the process with status {ended[1]}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r" with name '[^']*'", "", lines[-1]) if lines else ""  # names of nodes say nothing here
    return f"{type(error).__name__}: {text[:200]}"


def _short(fields: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in fields.items() if key not in ("call", "example") and value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.llm_methods.measuring", description=__doc__)
    parser.add_argument("--model", default="tiny", choices=list(convert.MODELS))
    parser.add_argument("--minutes", type=float, default=90, help="begin no method after this time")
    parser.add_argument("--only", default="", help="the name of one method, which is measured again")
    parser.add_argument(
        "--kinds", nargs="+", default=(*KINDS, PEERS), choices=(*KINDS, PEERS), help="only methods of these kinds"
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=cache.LENGTHS, help="tokens of the long prompts")
    parser.add_argument("--speed", action="store_true", help="only the speed of weights, activations, caches and peers")
    parser.add_argument("--quality", action="store_true", help="everything but that, which a busy machine may do")
    parser.add_argument("--busy", action="store_true", help="measure speed on a busy machine, too; its rows say so")
    options = parser.parse_args()
    rows, LENGTHS[:] = Rows(place(options.model)), options.lengths
    try:
        if not options.speed:
            measure(options.model, rows, options.minutes, options.only, options.kinds)
        if options.quality:
            return 0
        if "weights" in options.kinds:
            make_models(options.model, rows, options.only)
        with nullcontext() if options.busy else bench.exclusive():
            measure_speed(options.model, rows, options.only, options.kinds)
    except (ValueError, OSError, bench.Busy) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
