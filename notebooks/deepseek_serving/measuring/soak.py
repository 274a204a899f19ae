"""Soak test: minutes of random requests, many of them aborted, after which no resources may have leaked.

`python -m notebooks.deepseek_serving.measuring.soak FOLDER --minutes 3` serves the repository and prints the results.
It fails where a request, a thread or memory has leaked.
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
import psutil
from scipy.stats import theilslopes

from notebooks.deepseek_serving.server import Server, ServerFailed, repository, serve

CLIENTS = 24
ROUNDS = 12  # of load, with a reading of the process after each; the first third is a warm-up
NOISE_MB = 2  # memory may grow by this,
LEAK_KB = 5  # and by this for each request
MAX_NEW_THREADS = 4  # the pool that encodes prompts starts its threads when they are first needed
WORDS = "river stone lantern orbit copper meadow violin harbour engine winter paper comet".split()


def soak(folder: Path, minutes: float = 3.0, *, clients: int = CLIENTS, seed: int = 0) -> dict:
    """Send random requests to a local server of the repository for `minutes`; returns counts and what leaked.

    Memory is compared from the end of the first third of the load on, by `growth` over the readings after each round.
    "leaked" names the resources that leaked, "pass" is true when there are none.
    """
    counts: Counter = Counter()
    readings = []
    with serve(folder, kind="local", quiet=True) as running:
        asyncio.run(_warm_up(running, repository.read(folder).options.max_num_batched_tokens))
        for turn in range(ROUNDS):
            counts += asyncio.run(_load(running, minutes * 60 / ROUNDS, clients, f"{seed}-{turn}"))
            readings.append(_settled(running) | {"requests": counts["finished"] + counts["aborted"]})
        metrics = _metrics(running.url)
    readings = readings[ROUNDS // 3 - 1 :]
    before, after = readings[0], readings[-1]
    results = {
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
        "memory_growth_mb": round(growth([(one["requests"], one["rss"] / 2**20) for one in readings]), 1),
        "memory_growth_allowed_mb": round(allowed_growth(after["requests"] - before["requests"]), 1),
        "memory_mb": round(after["rss"] / 2**20),
    }
    results["leaked"] = leaked(results)
    results["pass"] = not results["leaked"] and counts["finished"] > 0 and counts["aborted"] > 0
    return results


def leaked(results: dict) -> list[str]:
    """The names of the results that are larger than allowed."""
    allowed = {"new_threads": MAX_NEW_THREADS, "memory_growth_mb": results["memory_growth_allowed_mb"]}
    names = ("failed", "left_in_flight", "left_in_engine", "new_threads", "new_connections", "memory_growth_mb")
    return [name for name in names if results[name] > allowed.get(name, 0)]


def allowed_growth(requests: int) -> float:
    """The megabytes by which memory may grow over so many requests."""
    return NOISE_MB + LEAK_KB / 1024 * requests


def growth(readings: list[tuple[int, float]]) -> float:
    """The growth of memory over readings (requests so far, memory), by the Theil-Sen slope.

    A leak adds to every round. A cache that fills, or a buffer that only one reading contains, changes few of the
    slopes whose median this is.
    """
    requests, memory = zip(*readings, strict=True)
    added = requests[-1] - requests[0]
    return float(theilslopes(memory, requests).slope * added) if added else 0.0


async def _load(running: Server, seconds: float, clients: int, seed: str) -> Counter:
    counts: Counter = Counter()
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=running.url, timeout=120, trust_env=False) as client:
        await asyncio.gather(
            *(_client(client, running.model, random.Random(f"{seed}-{i}"), until, counts) for i in range(clients))
        )
    return counts


async def _client(client: httpx.AsyncClient, model: str, chance: random.Random, until: float, counts: Counter) -> None:
    """One user, who sends requests and aborts some of them before or during the answer."""
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
                    complete = reply.status_code == 200 and whole.endswith(b"data: [DONE]\n\n")
                else:
                    reply = await client.post("/v3/chat/completions", json=body)
                    complete = reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] > 0
            counts["finished" if complete else "failed"] += 1
        except TimeoutError:
            counts["aborted"] += 1
        except httpx.HTTPError:
            counts["failed"] += 1


async def _warm_up(running: Server, tokens: int) -> None:
    """Send prompts of 1 to `tokens` tokens, the most that one step takes, one after the other.

    Memory grows here without a leak. The CPU plugin keeps the kernels for each number of tokens, 1 to 2 MB for the tiny
    model. The KV cache takes its pages from the system when they are first used.
    """
    chance = random.Random(0)
    async with httpx.AsyncClient(base_url=running.url, timeout=600, trust_env=False) as client:
        for count in range(1, tokens + 1):
            digits = "".join(chance.choices("0123456789", k=count))  # one token each; the prompts share no prefix
            body = {"model": running.model, "prompt": digits, "max_tokens": 1}
            (await client.post("/v3/completions", json=body)).raise_for_status()


def _settled(running: Server, seconds: float = 20.0, pause: float = 0.5) -> dict:
    """A reading of the server's process once no request is in flight, or after `seconds`."""
    process = psutil.Process(running.pid)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        metrics = _metrics(running.url)
        if not metrics["ovms_current_graphs"] + metrics["llm_requests_running"] + metrics["llm_requests_waiting"]:
            break
        time.sleep(0.1)
    time.sleep(pause)  # until the connections that clients closed are gone
    connections = [c for c in process.net_connections() if c.status == psutil.CONN_ESTABLISHED]
    return {
        "rss": process.memory_info().rss,
        "threads": process.num_threads(),
        "connections": len(connections),
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
    options = parser.parse_args(arguments)
    try:
        results = soak(options.folder, options.minutes, clients=options.clients)
    except (ValueError, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(results, indent=1))
    return 0 if results["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
