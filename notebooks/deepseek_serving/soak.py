"""Minutes of random requests, many of them abandoned half-way: at the end nothing may be left over.

`python -m notebooks.deepseek_serving.soak FOLDER --minutes 3` serves the repository and prints the figures; it
fails where a request, a thread or memory has leaked.
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

from notebooks.deepseek_serving import repository, server

CLIENTS = 24
GROWTH_MB = 64  # of memory, that two passes over the same load may differ by
GROWTH_THREADS = 4  # the pool that reads prompts starts its threads when they are first needed
WORDS = "river stone lantern orbit copper meadow violin harbour engine winter paper comet".split()


def soak(folder: Path, minutes: float = 3.0, *, clients: int = CLIENTS, seed: int = 0) -> dict:
    """Load the repository's local server for `minutes`; figures of what was asked and what was left over.

    Memory is compared between two points under the same load: after the first third, when caches are full and
    allocators have grown, and at the end. `leaked` names what is left over, `pass` is true when that is nothing.
    """
    words = min(1500, repository.read(folder).context // 8)
    with server.serve(folder, kind="local", quiet=True) as running:
        process = psutil.Process(running.pid)
        asyncio.run(_fill_cache(running, process, words))
        first = asyncio.run(_load(running, minutes * 60 / 3, clients, seed))
        before = _settled(running, process)
        second = asyncio.run(_load(running, minutes * 60 * 2 / 3, clients, seed + 1))
        after = _settled(running, process)
        metrics = _metrics(running.url)
    counts = first + second
    figures = {
        "minutes": round(minutes, 2),
        "clients": clients,
        "requests": counts["finished"] + counts["aborted"],
        "aborted_by_clients": counts["aborted"],
        "failed": counts["failed"],
        "generated_tokens": int(metrics["llm_generated_tokens_total"]),
        "left_in_flight": int(after["in_flight"]),
        "left_in_engine": int(metrics["llm_requests_running"] + metrics["llm_requests_waiting"]),
        "new_threads": after["threads"] - before["threads"],
        "new_connections": after["connections"] - before["connections"],
        "memory_growth_mb": round((after["rss"] - before["rss"]) / 2**20, 1),
        "memory_mb": round(after["rss"] / 2**20),
    }
    figures["leaked"] = leaked(figures)
    figures["pass"] = not figures["leaked"] and counts["finished"] > 0 and counts["aborted"] > 0
    return figures


def leaked(figures: dict) -> list[str]:
    """Names of the figures that should be none, or for memory small, and are not."""
    allowed = {"new_threads": GROWTH_THREADS, "memory_growth_mb": GROWTH_MB}
    names = ("failed", "left_in_flight", "left_in_engine", "new_threads", "new_connections", "memory_growth_mb")
    return [name for name in names if figures[name] > allowed.get(name, 0)]


async def _load(running: server.Server, seconds: float, clients: int, seed: int) -> Counter:
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


async def _fill_cache(running: server.Server, process: psutil.Process, words: int, rounds: int = 40) -> None:
    """Ask long prompts until memory grows no more: the KV cache takes its pages when they are first used."""
    chance = random.Random(0)
    async with httpx.AsyncClient(base_url=running.url, timeout=600, trust_env=False) as client:
        for _ in range(rounds):
            before = process.memory_info().rss
            bodies = [
                {"model": running.model, "prompt": " ".join(chance.choices(WORDS, k=words)), "max_tokens": 1}
                for _ in range(4)
            ]
            for reply in await asyncio.gather(*(client.post("/v3/completions", json=body) for body in bodies)):
                reply.raise_for_status()
            if process.memory_info().rss - before < 8 * 2**20:
                return


def _settled(running: server.Server, process: psutil.Process, seconds: float = 20.0) -> dict:
    """State of the server's process once nothing is in flight, or after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        metrics = _metrics(running.url)
        if not metrics["ovms_current_graphs"] + metrics["llm_requests_running"] + metrics["llm_requests_waiting"]:
            break
        time.sleep(0.1)
    time.sleep(0.5)  # connections that the clients closed
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
    parser = argparse.ArgumentParser(prog="python -m notebooks.deepseek_serving.soak", description=__doc__)
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
