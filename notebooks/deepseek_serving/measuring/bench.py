"""Throughput of a server under the load of many clients: `python -m notebooks.deepseek_serving.measuring`.

Each client sends one question after the other. All questions follow the same page of instructions, as in a real
assistant. The results are tokens per second over all clients, and the time to the first token. The notebook runs
`live`. This command writes the whole table, with prefix caching on and off, three precisions and both other servers,
to results/bench/deepseek_serving.json. With `--soak` it repeats the soak test alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.measuring import runtimes
from notebooks.deepseek_serving.measuring.soak import soak
from notebooks.deepseek_serving.server import repository, serve
from utils import bench, report, weights
from utils.models import llm

CLIENTS = (1, 4, 16, 64)
MAX_CLIENTS_TRANSFORMERS = 16  # its server is no faster with more clients, and takes minutes a round
ANSWER_TOKENS = 64  # of every request
RESULTS = report.BENCH / "deepseek_serving.json"
INSTRUCTION_CHARACTERS = 900  # of the instructions before each question, about 200 tokens
OURS, LLAMA, TORCH = "openvino", "llama.cpp", "transformers serve"
Label = tuple[str, str, str]  # runtime, precision, further settings


class Target(NamedTuple):
    """A server to measure.

    url: with the path of the API, such as http://127.0.0.1:8000/v3. exact_length: whether the server knows
    `ignore_eos`. Without it answers may be shorter, and only the generated tokens count.
    """

    url: str
    model: str
    exact_length: bool = True


@dataclass(frozen=True)
class Load:
    """The result of one run. Times are in seconds; first_token_s: from sending a request to its first text."""

    clients: int
    seconds: float
    first_token_s: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.completion_tokens / self.seconds


def questions(count: int, seed: int = 0) -> list[list[dict]]:
    """`count` conversations with the same instructions and different questions."""
    text = " ".join((llm.TEXT / "calibration.txt").read_text(encoding="utf-8").split())[:INSTRUCTION_CHARACTERS]
    system = {"role": "system", "content": f"Answer questions about this text: {text}"}
    numbers = np.random.default_rng(seed).permutation(10**6)[:count]
    return [
        [system, {"role": "user", "content": f"{number}. What does the text say about word {number % 97}?"}]
        for number in numbers
    ]


def run_load(target: Target, clients: int, conversations: Sequence[list[dict]], answer: int = ANSWER_TOKENS) -> Load:
    """Let `clients` concurrent clients stream the answers to all conversations, greedily, `answer` tokens each.

    Raises RuntimeError for an HTTP status other than 200, and for an incomplete stream.
    """
    with ThreadPoolExecutor(1) as thread:  # the kernel of a notebook already runs an event loop
        return thread.submit(asyncio.run, _run_load(target, clients, conversations, answer)).result()


async def _run_load(target: Target, clients: int, conversations: Sequence[list[dict]], answer: int) -> Load:
    remaining = iter(conversations)
    replies: list[tuple[float, int, int]] = []

    async def client() -> None:
        for messages in remaining:
            body = {"model": target.model, "messages": messages, "max_tokens": answer, "temperature": 0}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            body |= {"ignore_eos": True} if target.exact_length else {}
            replies.append(await _ask(target.url, json.dumps(body).encode()))

    begin = perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = perf_counter() - begin
    first_token_s, prompt_tokens, completion_tokens = zip(*replies, strict=True)
    return Load(clients, seconds, first_token_s, sum(prompt_tokens), sum(completion_tokens))


async def _ask(url: str, body: bytes) -> tuple[float, int, int]:
    """(seconds to the first text, prompt tokens, completion tokens).

    It uses plain sockets, because the client takes its time from the cores of the server.
    """
    address, first, usage, ended = urlsplit(url), None, None, False
    begin = perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
    try:
        head = f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{url} answered {status.decode().strip()}: {(await reader.read(500)).decode()}")
        async for line in reader:  # chunk sizes and headers are lines, too
            ended = ended or b"[DONE]" in line or b'"finish_reason":"' in line.replace(b" ", b"")
            if line.startswith(b"data: {") and (first is None or b"completion_tokens" in line):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                choice = (event.get("choices") or [{}])[0]
                if first is None and (choice.get("delta") or {}).get("content"):
                    first = perf_counter() - begin
    finally:
        writer.close()
    if not ended or usage is None or first is None:
        raise RuntimeError(f"{url} broke off a stream, or sent no usage.")
    return first, usage["prompt_tokens"], usage["completion_tokens"]


@contextmanager
def our_server(model: str, precision: str, prefix_caching: bool = True, device: str = "CPU") -> Iterator[Target]:
    """The server of this notebook on a temporary repository."""
    options = {"device": device, "enable_prefix_caching": prefix_caching}
    with repository.temporary(model, convert.prepare(model, precision), **options) as folder:
        with serve(folder, quiet=True) as server:
            yield Target(f"{server.url}/v3", model)


def measure(
    servers: dict[Label, Target], clients: int, rounds: int, requests: int, answer: int = ANSWER_TOKENS
) -> dict[Label, list[Load]]:
    """Load the servers alternately, after a warm-up round; a run has `requests`, or one for each client if more."""
    loads: dict[Label, list[Load]] = {label: [] for label in servers}
    for turn in range(rounds + 1):
        order = list(servers)[turn % len(servers) :] + list(servers)[: turn % len(servers)]
        for label in order:
            count = clients if turn == 0 else max(requests, clients)
            load = run_load(servers[label], clients, questions(count, seed=turn), answer)
            if turn:
                loads[label].append(load)
    return loads


def rows(loads: dict[Label, list[Load]], answer: int = ANSWER_TOKENS) -> list[dict]:
    """Speed rows for one number of clients: median and p90 are of the first token, the ratio is of tokens/s."""
    speeds = {key: float(np.median([load.tokens_per_second for load in runs])) for key, runs in loads.items()}
    torch_speed = next((speed for (runtime, *_), speed in speeds.items() if runtime == TORCH), None)
    table = []
    for key, runs in loads.items():
        runtime, precision, label = key
        timing = bench.Timing.of(_first_token_ms(runs))
        row = bench.row(runtime, precision, workload(runs[0].clients, answer), timing, label=label or None)
        speed = speeds[key]
        ratio = torch_speed and speed / torch_speed
        compared = {"throughput": speed, "unit": "tokens/s", "measure": "throughput", "ratio_to_torch": ratio}
        table.append(row | compared)
    return table


def workload(clients: int, answer: int = ANSWER_TOKENS) -> str:
    """The name of a workload in speed rows."""
    return f"{clients} client{'s' if clients > 1 else ''}, {answer} tokens each"


def p99_note(loads: dict[Label, list[Load]], answer: int = ANSWER_TOKENS) -> dict[str, str]:
    """A note for one number of clients: of each server, the time in which 99 of 100 requests have their first token."""
    texts = []
    for key, runs in loads.items():
        server = ", ".join(part for part in (" ".join(key[:2]), key[2]) if part)
        texts.append(f"{np.percentile(_first_token_ms(runs), 99):.0f} {server}")
    clients = next(iter(loads.values()))[0].clients
    return {f"first token, p99 in ms, {workload(clients, answer)}": "; ".join(texts)}


def _first_token_ms(runs: list[Load]) -> list[float]:
    return [1e3 * first for load in runs for first in load.first_token_s]


@bench.live
def live(url: str, name: str, model: str = "tiny", precision: str = "INT4", rounds: int = 1) -> list[dict]:
    """Speed rows for the notebook: its running server at 1, 4, 16 and 64 clients.

    With one client it is compared with the server of transformers, which would take minutes with sixteen.
    """
    table, folder = [], convert.checkpoint_folder(model)
    with runtimes.transformers_serve(folder) as peer:
        for clients in CLIENTS:
            servers = {(OURS, precision, ""): Target(f"{url}/v3", name)}
            if clients == 1:
                servers[TORCH, bench.torch_precision(), ""] = Target(f"{peer}/v1", str(folder), False)
            table += rows(measure(servers, clients, rounds, requests=2, answer=32), answer=32)
    return table


def everything(model: str = "tiny", rounds: int = 2, clients: Sequence[int] = CLIENTS, answer: int = ANSWER_TOKENS):
    """(speed rows, notes) of all precisions, prefix caching on and off, and the other servers on this machine."""
    table, notes = [], {}
    program, gguf = runtimes.find_llama(), weights.resolve(convert.MODELS[model]["checkpoint"])
    if program is None or gguf.suffix != ".gguf":
        program, notes["left out"] = None, "llama.cpp: no llama-server in LLAMA_SERVER or on PATH, or no GGUF file"
    with ExitStack() as stack:
        servers = {
            (OURS, precision, label): stack.enter_context(our_server(model, precision, not label))
            for precision, label in (("INT4", ""), ("INT4", "prefix caching off"), ("INT8", ""), ("FP16", ""))
        }
        folder = convert.checkpoint_folder(model)
        peer = stack.enter_context(runtimes.transformers_serve(folder))
        servers[TORCH, bench.torch_precision(), ""] = Target(f"{peer}/v1", str(folder), False)
        for count in clients:
            with ExitStack() as llama:
                if program:  # it is fastest with as many slots as clients
                    url = llama.enter_context(runtimes.llama_server(program, gguf, count))
                    servers[LLAMA, gguf.stem.rpartition(".")[2], ""] = Target(f"{url}/v1", model)
                if count > MAX_CLIENTS_TRANSFORMERS:
                    servers.pop((TORCH, bench.torch_precision(), ""), None)
                loads = measure(servers, count, rounds, requests=8, answer=answer)
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
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    layers = config["num_hidden_layers"] * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * mlp)
    head = hidden * config["vocab_size"]
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
