"""Throughput of a server under the load of many clients: `python -m notebooks.deepseek_serving.measuring`.

`utils.serving.load` holds the clients. The notebook runs `live`. This command writes the whole table, with prefix
caching on and off, three precisions, both other servers and PyTorch without a server, to
results/bench/deepseek_serving.json. With `--soak` it repeats the soak test alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.measuring.soak import soak
from notebooks.deepseek_serving.server import repository, serve
from utils import bench, report, weights
from utils.models import llm
from utils.models.llm_speed import layer_weights
from utils.serving import peers
from utils.serving.load import ANSWER_TOKENS, EAGER, TORCH, Label, Load, Model, Target, measure, p99_note, rows

CLIENTS = (1, 4, 16, 64)
MAX_CLIENTS_TRANSFORMERS = 16  # its server is no faster with more clients, and takes minutes a round
RESULTS = report.BENCH / "deepseek_serving.json"
OURS, LLAMA = "openvino", "llama.cpp"


@contextmanager
def our_server(model: str, precision: str, prefix_caching: bool = True, device: str = "CPU") -> Iterator[Target]:
    """The server of this notebook on a temporary repository."""
    options = {"device": device, "enable_prefix_caching": prefix_caching}
    with repository.temporary(model, convert.prepare(model, precision), **options) as folder:
        with serve(folder, quiet=True) as server:
            yield Target(f"{server.url}/v3", model)


def eager(stack: ExitStack, folder: Path) -> dict[Label, Model]:
    """PyTorch eager on a transformers folder, without a server, until the stack is closed."""
    return {
        (EAGER, precision, ""): stack.enter_context(peers.torch_eager(folder, precision))
        for precision in bench.torch_precisions()
    }


@bench.live
def live(url: str, name: str, model: str = "tiny", precision: str = "INT4", rounds: int = 1) -> list[dict]:
    """Speed rows for the notebook: its running server at 1, 4, 16 and 64 clients.

    With one client it is compared with PyTorch without a server, and with the server of transformers, which would take
    minutes with sixteen.
    """
    table, folder = [], convert.checkpoint_folder(model)
    for clients in CLIENTS:
        servers: dict[Label, Target | Model] = {(OURS, precision, ""): Target(f"{url}/v3", name)}
        with ExitStack() as stack:
            if clients == 1:
                peer = stack.enter_context(peers.transformers_serve(folder))
                servers[TORCH, bench.torch_precision(), ""] = Target(f"{peer}/v1", str(folder), False)
                servers |= eager(stack, folder)
            table += rows(measure(servers, clients, rounds, requests=2, answer=32), answer=32)
    return table


def everything(model: str = "tiny", rounds: int = 2, clients: Sequence[int] = CLIENTS, answer: int = ANSWER_TOKENS):
    """(speed rows, notes) of all precisions, prefix caching on and off, and the peers on this machine."""
    table, notes = [], {}
    program, gguf = peers.find_llama(), weights.resolve(convert.MODELS[model]["checkpoint"])
    if program is None or gguf.suffix != ".gguf":
        program, notes["left out"] = None, "llama.cpp: no llama-server in LLAMA_SERVER or on PATH, or no GGUF file"
    with ExitStack() as stack:
        servers = {
            (OURS, precision, label): stack.enter_context(our_server(model, precision, not label))
            for precision, label in (("INT4", ""), ("INT4", "prefix caching off"), ("INT8", ""), ("FP16", ""))
        }
        folder = convert.checkpoint_folder(model)
        peer = stack.enter_context(peers.transformers_serve(folder))
        servers[TORCH, bench.torch_precision(), ""] = Target(f"{peer}/v1", str(folder), False)
        for count in clients:
            with ExitStack() as now:
                others = eager(now, folder) if count == 1 else {}
                if program:  # it is fastest with as many slots as clients
                    url = now.enter_context(peers.llama_server(program, gguf, count))
                    others[LLAMA, gguf.stem.rpartition(".")[2], ""] = Target(f"{url}/v1", model)
                if count > MAX_CLIENTS_TRANSFORMERS:
                    servers.pop((TORCH, bench.torch_precision(), ""), None)
                loads = measure(servers | others, count, rounds, requests=8, answer=answer)
            table += rows(loads, answer)
            notes |= p99_note(loads, answer)
            print(f"{count} clients: measured", flush=True)
            if count == max(clients):
                notes |= _limits(model, loads[OURS, "INT4", "prefix caching off"])
    return table, notes | _scaling(table, model)


def _scaling(table: list[dict], model: str) -> dict[str, float]:
    """Notes: the throughput of many clients over that of one, and the share of the memory bandwidth that one uses."""
    ours = [row for row in table if (row["runtime"], row["precision"]) == (OURS, "INT4")]
    speeds = {int(row["workload"].split()[0]): row["throughput"] for row in ours if "label" not in row}
    one = speeds.get(1)
    notes = {f"{count} clients, times the throughput of one": round(speeds[count] / one, 1) for count in speeds if one}
    notes.pop("1 clients, times the throughput of one", None)
    bandwidth = bench.read_bandwidth_gbs()
    size = bench.size_mb((convert.prepare(model, "INT4") / llm.MODEL_XML).with_suffix(".bin")) / 1e3
    share = {"one client, share of the read bandwidth": round(size * one / bandwidth, 2)} if one else {}
    return {"read bandwidth, GB/s": round(bandwidth, 1)} | share | notes


def _limits(model: str, runs: list[Load]) -> dict[str, float]:
    """Notes: the share of the machine's arithmetic that the largest load takes, without prefix caching.

    A token costs two operations for each weight. The output layer runs for generated tokens only. Without prefix
    caching every prompt token is computed.
    """
    config = json.loads((convert.prepare(model) / "config.json").read_text(encoding="utf-8"))
    layers, head = layer_weights(config), config["hidden_size"] * config["vocab_size"]
    gflops = [
        2e-9 * ((load.prompt_tokens + load.completion_tokens) * layers + load.completion_tokens * head) / load.seconds
        for load in runs
    ]
    product = bench.matmul_gflops("bf16")
    return {
        "largest bf16 matrix product, GFLOP/s": round(product),
        f"{runs[0].clients} clients without prefix caching, share of that product": round(
            float(np.median(gflops)) / product, 2
        ),
    }


def soak_notes(model: str = "tiny", minutes: float = 3) -> dict[str, str]:
    """The results of the soak test as a note."""
    with repository.temporary(model, convert.prepare(model)) as folder:
        return {"soak, result": soak_text(soak(folder, minutes))}


def soak_text(results: dict) -> str:
    """The results of the soak test in one line."""
    leaked = ", ".join(results["leaked"]) or "nothing"
    outcome = "passes" if results["pass"] else "FAILS"
    return (
        f"{outcome}: {results['minutes']:g} minutes with {results['clients']} clients, "
        f"{results['requests']:,} requests, {results['aborted_by_clients']:,} of them aborted by clients, "
        f"{results['failed']} failed, {results['generated_tokens']:,} tokens; leaked: {leaked}; memory of "
        f"{results['memory_mb']:,} MB grew by {results['memory_growth_mb']} MB "
        f"(allowed {results['memory_growth_allowed_mb']} MB)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything, or with --soak the soak test alone, whose notes then replace the earlier ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--soak", action="store_true", help="run the soak test alone")
    only_soak = parser.parse_args(arguments).soak
    with bench.exclusive() as load:
        table, notes = ([], {}) if only_soak else everything()
        soak_results = soak_notes()
    if only_soak:
        report.amend(RESULTS, "soak, ", soak_results)
    else:
        report.save_bench("deepseek_serving", table, notes | soak_results | load)
