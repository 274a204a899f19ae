"""Minutes of random requests, many of them abandoned half-way: at the end nothing may be left over.

`python -m notebooks.deepseek_serving.measuring.soak FOLDER --minutes 3` serves the repository and prints the figures;
it fails where a request, a thread or memory has leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import psutil

from notebooks.deepseek_serving.server import process as server
from notebooks.deepseek_serving.server import repository

CLIENTS = 24
ROUNDS = 12  # of load, with a look at what is left over after each; the first third is for settling
NOISE_MB, LEAK_KB = 2, 5  # memory may grow by this, and by this a request
GROWTH_THREADS = 4  # the pool that reads prompts starts its threads when they are first needed
WORDS = "river stone lantern orbit copper meadow violin harbour engine winter paper comet".split()


def soak(folder: Path, minutes: float = 3.0, *, clients: int = CLIENTS, seed: int = 0) -> dict:
    """Load the repository's local server for `minutes`; figures of what was asked and what was left over.

    Memory counts from the first third of the load on, by `growth` over the readings after each round. `leaked`
    names what is left over, `pass` is true when that is nothing.
    """
    counts: Counter = Counter()
    states = []
    with server.serve(folder, kind="local", quiet=True) as running:
        asyncio.run(_warm_up(running, repository.read(folder).options.max_num_batched_tokens))
        for turn in range(ROUNDS):
            counts += asyncio.run(_load(running, minutes * 60 / ROUNDS, clients, f"{seed}-{turn}"))
            states.append(_settled(running) | {"requests": counts["finished"] + counts["aborted"]})
        metrics = _metrics(running.url)
    measured = states[ROUNDS // 3 - 1 :]
    before, after = measured[0], measured[-1]
    figures = {
        "minutes": round(minutes, 2),
        "clients": clients,
        "requests": after["requests"],
        "aborted_by_clients": counts["aborted"],
        "failed": counts["failed"],
        "generated_tokens": int(metrics["llm_generated_tokens_total"]),
        "left_in_flight": int(after["in_flight"]),
        "left_in_engine": int(metrics["llm_requests_running"] + metrics["llm_requests_waiting"]),
        "new_threads": after["threads"] - before["threads"],
        "new_connections": after["connections"] - before["connections"],
        "memory_growth_mb": round(growth([(state["requests"], state["rss"] / 2**20) for state in measured]), 1),
        "memory_growth_allowed_mb": round(allowed_growth(after["requests"] - before["requests"]), 1),
        "memory_mb": round(after["rss"] / 2**20),
    }
    figures["leaked"] = leaked(figures)
    figures["pass"] = not figures["leaked"] and counts["finished"] > 0 and counts["aborted"] > 0
    return figures


def leaked(figures: dict) -> list[str]:
    """Names of the figures that should be none, or for memory small, and are not."""
    allowed = {"new_threads": GROWTH_THREADS, "memory_growth_mb": figures["memory_growth_allowed_mb"]}
    names = ("failed", "left_in_flight", "left_in_engine", "new_threads", "new_connections", "memory_growth_mb")
    return [name for name in names if figures[name] > allowed.get(name, 0)]


def allowed_growth(requests: int) -> float:
    """Megabytes that memory may gain over so many requests."""
    return NOISE_MB + LEAK_KB / 1024 * requests


def growth(readings: list[tuple[int, float]]) -> float:
    """What memory gained over all of (requests so far, memory), by the median of the slopes between any two.

    A leak adds to every round; a cache that fills, or a buffer that is there in one reading and not in the next,
    moves few of the slopes (the estimator of Theil and Sen).
    """
    requests, memory = np.array(readings, float).T
    first, second = np.triu_indices(len(readings), 1)
    further = requests[second] > requests[first]
    slopes = (memory[second] - memory[first])[further] / (requests[second] - requests[first])[further]
    return float(np.median(slopes) * (requests[-1] - requests[0])) if further.any() else 0.0


async def _load(running: server.Server, seconds: float, clients: int, seed: str) -> Counter:
    counts: Counter = Counter()
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=running.url, timeout=120, trust_env=False) as client:
        await asyncio.gather(
            *(_client(client, running.model, random.Random(f"{seed}-{i}"), until, counts) for i in range(clients))
        )
    return counts


async def _client(client: httpx.AsyncClient, model: str, chance: random.Random, until: float, counts: Counter) -> None:
    """One user: asks, reads some or all of the answer, or hangs up before it begins."""
    while time.monotonic() < until:
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 120)))
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": chance.randint(1, 96),
            "temperature": chance.choice([0, 0.8]),
            "stream": chance.random() < 0.8,
        }
        patience = chance.choice([0, 0.01, 0.2, 1.0]) if chance.random() < 0.4 else None
        try:
            async with asyncio.timeout(patience):
                if body["stream"]:
                    async with client.stream("POST", "/v3/chat/completions", json=body) as reply:
                        whole = b"".join([piece async for piece in reply.aiter_bytes()])
                    right = reply.status_code == 200 and whole.endswith(b"data: [DONE]\n\n")
                else:
                    reply = await client.post("/v3/chat/completions", json=body)
                    right = reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] > 0
            counts["finished" if right else "failed"] += 1
        except TimeoutError:
            counts["aborted"] += 1
        except httpx.HTTPError:
            counts["failed"] += 1


async def _warm_up(running: server.Server, tokens: int) -> None:
    """Ask prompts of 1 to `tokens` tokens, the most that one step takes, one after the other.

    The CPU plugin keeps the kernels of each number of tokens it has seen, 1 to 2 MB for the tiny model, and the KV
    cache takes its pages from the system when they are first used: both grow without being leaks, and end here.
    """
    chance = random.Random(0)
    async with httpx.AsyncClient(base_url=running.url, timeout=600, trust_env=False) as client:
        for count in range(1, tokens + 1):
            digits = "".join(chance.choices("0123456789", k=count))  # a token each, and no prefix of another prompt
            body = {"model": running.model, "prompt": digits, "max_tokens": 1}
            (await client.post("/v3/completions", json=body)).raise_for_status()


def _settled(running: server.Server, seconds: float = 20.0, pause: float = 0.5) -> dict:
    """State of the server's process once nothing is in flight, or after `seconds`."""
    process = psutil.Process(running.pid)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        metrics = _metrics(running.url)
        if not metrics["ovms_current_graphs"] + metrics["llm_requests_running"] + metrics["llm_requests_waiting"]:
            break
        time.sleep(0.1)
    time.sleep(pause)  # connections that the clients closed
    open_ones = [c for c in process.net_connections() if c.status == psutil.CONN_ESTABLISHED]
    return {
        "rss": process.memory_info().rss,
        "threads": process.num_threads(),
        "connections": len(open_ones),
        "in_flight": metrics["ovms_current_graphs"],
    }


def _metrics(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in pairs}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.deepseek_serving.measuring.soak", description=__doc__)
    parser.add_argument("folder", type=Path, help="a model repository")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    given = parser.parse_args(arguments)
    try:
        figures = soak(given.folder, given.minutes, clients=given.clients)
    except (ValueError, server.ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(figures, indent=1))
    return 0 if figures["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
