"""Ray: throughput by the number of replicas, requests during a rolling restart, and 10,000 prompts offline."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import NamedTuple

from ray import serve

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.server import offline, replicas
from utils import bench
from utils.models import llm
from utils.ray_cluster.cluster import Cluster
from utils.serving import load
from utils.serving.engine import Settings
from utils.serving.load import Load, Target

RAY = "Ray: "  # of the notes that are measured here
PRECISION = "INT8"
NAME = "answers"  # of the application, and of the model in requests
COUNTS = (1, 2)  # replicas
CLIENTS, REQUESTS, ANSWER = 8, 48, 32  # clients at once, requests of a run, tokens of an answer
CONTEXT = 1024  # tokens of prompt and answer
PROMPTS, PROMPT_ANSWER, BATCH = 10_000, 8, 32  # of the offline job: prompts, tokens of an answer, prompts of a batch
PATIENCE_S = 120.0


class Answered(NamedTuple):
    """What clients saw: how many requests were answered whole, and the error of each other one."""

    whole: int
    errors: list[str]


def model_folder(model: str = "tiny") -> Path:
    """The IR folder, with tokenizers, of what the replicas serve."""
    own = convert.MODELS[model]
    return llm.ir_folder(own["checkpoint"], convert.checkpoint_folder(model), PRECISION, ram_gb=own["ram_gb"])


def settings(model: Path, count: int = 1) -> Settings:
    """Of the engine of one of `count` replicas, which divide the cores of this machine. model: an IR folder."""
    threads = max(1, bench.machine()["cores"] // count)
    return Settings(NAME, model, CONTEXT, scheduler={"cache_size": 1}, properties={"INFERENCE_NUM_THREADS": threads})


def deploy(model: Path, count: int) -> None:
    """Run `count` replicas; those that run already are replaced. Returns when the new ones are alone."""
    serve.run(replicas.Replica.options(num_replicas=count).bind(settings(model, count)), name=NAME)
    wait_for(count)


def wait_for(count: int) -> None:
    """Wait until `count` replicas run and no other is there. Raises RuntimeError after PATIENCE_S."""
    end = perf_counter() + PATIENCE_S
    while (found := states()) != {"RUNNING": count}:
        if perf_counter() > end:
            raise RuntimeError(f"{count} replicas should run after {PATIENCE_S:g} s, and there are {found}.")
        sleep(0.1)


def states() -> dict[str, int]:
    """How many replicas are in each state."""
    (deployment,) = serve.status().applications[NAME].deployments.values()
    return {state: count for state, count in deployment.replica_states.items() if count}


def under_load(target: Target, clients: int, work: Callable[[], object], answer: int = ANSWER) -> Answered:
    """Let `clients` send one request after the other while `work()` runs, and each at least one more after its end."""
    finished = threading.Event()

    def client(number: int) -> Answered:
        whole, errors = 0, []
        for conversation in cycle(load.questions(REQUESTS, seed=number)):
            last = finished.is_set()
            try:
                load.run_load(target, 1, [conversation], answer)
                whole += 1
            except (RuntimeError, OSError) as error:
                errors.append(str(error) or repr(error))
            if last:
                return Answered(whole, errors)

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, number) for number in range(clients)]
        try:
            work()
        finally:
            finished.set()
        found = [one.result() for one in running]
    return Answered(sum(one.whole for one in found), [error for one in found for error in one.errors])


class Counted:
    """A generator for `offline.Worker` that notes each batch in a file before it begins: process and prompts."""

    def __init__(self, log: Path, make: Callable, *arguments) -> None:
        self.log, self.generate = log, make(*arguments)

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        with self.log.open("a", encoding="ascii") as file:  # one short write, so that lines of processes do not mix
            file.write(f"{os.getpid()} {len(prompts)}\n")
        return self.generate(prompts)


def begun(log: Path) -> list[tuple[int, int]]:
    """(process, prompts) of each batch that was begun, in order."""
    lines = log.read_text(encoding="ascii").splitlines() if log.is_file() else []
    return [tuple(map(int, line.split())) for line in lines]


@contextmanager
def killing(log: Path, after: int) -> Iterator[None]:
    """Kill the worker that begins batch number `after` (from 1) of a job that runs in the block.

    What Ray prints about the killed worker is left out.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            if len(batches := begun(log)) >= after:
                os.kill(batches[after - 1][0], getattr(signal, "SIGKILL", signal.SIGTERM))
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with redirect_stdout(io.StringIO()), _without_stderr():
            yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Let what this process writes to file 2 go nowhere: Ray's own code in C++ writes there."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def throughput(model: Path, url: str, rounds: int = 3) -> dict[str, float]:
    """Notes: tokens/s and the time to the first token of COUNTS replicas, alternately, after a warm-up round."""
    loads: dict[int, list[Load]] = {count: [] for count in COUNTS}
    for turn in range(rounds + 1):
        for count in COUNTS:
            deploy(model, count)
            found = load.run_load(Target(f"{url}/v1", NAME), CLIENTS, load.questions(REQUESTS, seed=turn), ANSWER)
            if turn:
                loads[count].append(found)
    notes = {}
    for count, runs in loads.items():
        name = f"{RAY}{count} replica{'s' if count > 1 else ''}, {load.workload(CLIENTS, ANSWER)}"
        first_token_s = [first for run in runs for first in run.first_token_s]
        notes[f"{name}, tokens/s"] = round(median(run.tokens_per_second for run in runs), 1)
        notes[f"{name}, median ms to the first token"] = round(1e3 * median(first_token_s), 1)
    return notes


def restart(model: Path, url: str) -> dict[str, int | float]:
    """Notes: requests during a rolling restart of two replicas."""
    deploy(model, 2)
    begin = perf_counter()
    found = under_load(Target(f"{url}/v1", NAME), CLIENTS, lambda: deploy(model, 2))
    name = f"{RAY}rolling restart of 2 replicas under {CLIENTS} clients"
    return {
        f"{name}, s": round(perf_counter() - begin, 1),
        f"{name}, requests answered": found.whole,
        f"{name}, requests that failed": len(found.errors),
    }


def autoscaling(model: Path, url: str) -> dict[str, float | int]:
    """Notes: how long it takes from one replica to two under load and back without, and the requests that failed."""
    serve.run(replicas.autoscaled(1, 2, patience_s=5).bind(settings(model, 2)), name=NAME)
    wait_for(1)
    begin = perf_counter()
    found = under_load(Target(f"{url}/v1", NAME), CLIENTS, lambda: wait_for(2))
    loaded = perf_counter()
    wait_for(1)
    name = f"{RAY}autoscaling under {CLIENTS} clients"
    return {
        f"{name}, s from 1 to 2 replicas": round(loaded - begin, 1),
        f"{name}, s from 2 to 1 replica after it": round(perf_counter() - loaded, 1),
        f"{name}, requests that failed": len(found.errors),
    }


def offline_job(model: Path, prompts: Sequence[str]) -> dict[str, int | float]:
    """Notes: an offline job in which a worker is killed after a third of its batches."""
    with TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch, "begun")
        arguments = (log, offline.Generator, model, PROMPT_ANSWER)
        about = {"model": model.name, "tokens": PROMPT_ANSWER}
        begin = perf_counter()
        with killing(log, len(prompts) // BATCH // 3 + 1):
            answers = offline.run(prompts, folder, Counted, arguments, settings=about, batch=BATCH)
        seconds = perf_counter() - begin
        rows = sum(1 for _ in answers.open(encoding="utf-8"))
        batches = begun(log)
    name = f"{RAY}{len(prompts):,} prompts offline, {PROMPT_ANSWER} tokens each, a worker killed"
    return {
        f"{name}, s": round(seconds, 1),
        f"{name}, prompts/s": round(len(prompts) / seconds, 1),
        f"{name}, answers": rows,
        f"{name}, prompts generated twice": sum(count for _, count in batches) - len(set(prompts)),
        f"{name}, worker processes": len({process for process, _ in batches}),
    }


def sums(count: int) -> list[str]:
    """`count` different prompts."""
    return [f"What is {number // 100} plus {number % 100}?" for number in range(count)]


def measure() -> dict[str, int | float]:
    """The notes of everything here, on a Ray that is started for it."""
    model = model_folder()
    with Cluster():
        url = replicas.listen()
        notes = throughput(model, url) | restart(model, url) | autoscaling(model, url)
        serve.delete(NAME)  # its memory and cores are for the offline job
        return notes | offline_job(model, sums(PROMPTS))
