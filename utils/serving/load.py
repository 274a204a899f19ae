"""Load on a server: many clients that ask at once, the tokens per second of all, and the time to the first token.

Each client sends one question after the other. All questions follow the same page of instructions, as in a real
assistant. It uses plain sockets, because the clients take their time from the cores of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from utils import bench
from utils.compare import is_pytorch
from utils.models import llm

ANSWER_TOKENS = 64  # of every request
INSTRUCTION_CHARACTERS = 900  # of the instructions before each question, about 200 tokens
TORCH, EAGER = "transformers serve", "torch eager"
Label = tuple[str, str, str]  # runtime, precision, further settings
Reply = tuple[float, int, int]  # seconds to the first text, prompt tokens, completion tokens
Model = Callable[[list[dict], int], Reply]  # a model without a server: it answers a conversation with so many tokens


class Target(NamedTuple):
    """A server to measure.

    url: with the path of the API, such as http://127.0.0.1:8000/v3. exact_length: whether the server knows
    `ignore_eos`. Without it answers may be shorter, and only the generated tokens count. ollama: whether it speaks
    Ollama's interface instead of OpenAI's.
    """

    url: str
    model: str
    exact_length: bool = True
    ollama: bool = False


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


def run_load(
    target: Target | Model, clients: int, conversations: Sequence[list[dict]], answer: int = ANSWER_TOKENS
) -> Load:
    """Let `clients` concurrent clients stream the answers to all conversations, greedily, `answer` tokens each.

    Raises RuntimeError for an HTTP status other than 200, and for an incomplete stream. Raises ValueError for several
    clients of a model without a server.
    """
    if callable(target) and clients > 1:
        raise ValueError(f"A model without a server answers one client at a time. Give it 1 client, not {clients}.")
    with ThreadPoolExecutor(1) as thread:  # the kernel of a notebook already runs an event loop
        return thread.submit(asyncio.run, _run_load(target, clients, conversations, answer)).result()


async def _run_load(target: Target | Model, clients: int, conversations: Sequence[list[dict]], answer: int) -> Load:
    remaining = iter(conversations)
    replies: list[Reply] = []

    async def client() -> None:
        for messages in remaining:
            replies.append(target(messages, answer) if callable(target) else await _ask(target, messages, answer))

    begin = perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = perf_counter() - begin
    first_token_s, prompt_tokens, completion_tokens = zip(*replies, strict=True)
    return Load(clients, seconds, first_token_s, sum(prompt_tokens), sum(completion_tokens))


async def _ask(target: Target, messages: list[dict], answer: int) -> Reply:
    address, first, usage, ended = urlsplit(target.url), None, None, False
    path, body = _request(target, messages, answer)
    begin = perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
    try:
        head = f"POST {address.path}{path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{target.url} answered {status.decode().strip()}: {(await reader.read(500)).decode()}")
        read = _ollama_line if target.ollama else _openai_line
        async for line in reader:  # chunk sizes and headers are lines, too
            text, counts, last = read(line, first is None)
            first = first or (perf_counter() - begin if text else None)
            usage, ended = counts or usage, ended or last
    finally:
        writer.close()
    if not ended or usage is None or first is None:
        raise RuntimeError(f"{target.url} broke off a stream, or sent no usage.")
    return first, *usage


def _request(target: Target, messages: list[dict], answer: int) -> tuple[str, bytes]:
    """(path below the target's URL, body)."""
    body: dict = {"model": target.model, "messages": messages, "stream": True}
    if target.ollama:
        return "/api/chat", json.dumps(body | {"options": {"num_predict": answer, "temperature": 0}}).encode()
    body |= {"max_tokens": answer, "temperature": 0, "stream_options": {"include_usage": True}}
    return "/chat/completions", json.dumps(body | ({"ignore_eos": True} if target.exact_length else {})).encode()


def _openai_line(line: bytes, waiting: bool) -> tuple[bool, tuple[int, int] | None, bool]:
    """(whether there is text, (prompt tokens, completion tokens) or None, whether the stream ends) of a line.

    waiting: whether no text has come yet; later lines of text are not parsed.
    """
    ended = b"[DONE]" in line or b'"finish_reason":"' in line.replace(b" ", b"")
    if not line.startswith(b"data: {") or not (waiting or b"completion_tokens" in line):
        return False, None, ended
    event = json.loads(line[6:])
    choice, usage = (event.get("choices") or [{}])[0], event.get("usage")
    counts = (usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
    return bool((choice.get("delta") or {}).get("content")), counts, ended


def _ollama_line(line: bytes, waiting: bool) -> tuple[bool, tuple[int, int] | None, bool]:
    """As `_openai_line`."""
    if not line.startswith(b"{") or not (waiting or b"eval_count" in line):
        return False, None, False
    event = json.loads(line)
    counts = (event["prompt_eval_count"], event["eval_count"]) if event.get("done") else None
    return bool((event.get("message") or {}).get("content")), counts, bool(event.get("done"))


def measure(
    servers: dict[Label, Target | Model], clients: int, rounds: int, requests: int, answer: int = ANSWER_TOKENS
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
    """Speed rows for one number of clients: median and p90 are of the first token, the ratio is of tokens/s to the
    fastest PyTorch."""
    speeds = {key: float(np.median([load.tokens_per_second for load in runs])) for key, runs in loads.items()}
    torch = [speed for (runtime, *_), speed in speeds.items() if is_pytorch({"runtime": runtime})]
    table = []
    for key, runs in loads.items():
        runtime, precision, label = key
        timing = bench.Timing.of(_first_token_ms(runs))
        row = bench.row(runtime, precision, workload(runs[0].clients, answer), timing, label=label or None)
        speed = speeds[key]
        ratio = speed / max(torch) if torch else None
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
