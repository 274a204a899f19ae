"""Starts the processes of all ranks on this machine, sends them prompts, and ends them all when one fails."""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from .group import LOOPBACK

START_S = 180.0  # for reading and compiling the model
SPIN_S = 0.002  # how long a rank with a core of its own asks for messages before it sleeps
POLL_S = 0.1
# By default. With one thread, attention in bfloat16 ends the process by SIGFPE on processors with AMX (2026.4.1).
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


class RankFailed(RuntimeError):
    """A rank has ended or is stuck; the message names it. All ranks have been ended."""


@dataclass(frozen=True)
class Step:
    """A token, and by rank: ms for it, ms of these in the group (with waiting for others), calls, bytes sent, cache."""

    token: int
    ms: list[float]
    group_ms: list[float]
    calls: list[int]
    bytes_sent: list[int]
    cache_mb: list[float]


class Ranks:
    """A language model on several processes, one for each folder.

    with Ranks([folder / "rank-0", folder / "rank-1"]) as ranks:
        for step in ranks.generate([1, 4093, 198], 32):
            print(step.token)
    """

    def __init__(
        self,
        folders: Sequence[str | Path],
        cores: Sequence[Sequence[int]] | None = None,
        *,
        device: str = "CPU",
        timeout_s: float = 10.0,
        module: str = f"{__package__}.worker",
        **properties,
    ) -> None:
        """cores: for each rank the cores that it may use; by default those of this process, shared out. timeout_s: how
        long a rank waits for another one. module: what the processes run. properties: OpenVINO's, which come after
        PRECISION.

        Raises ValueError where a rank refuses its share or none is given, RankFailed where one does not start.
        """
        if not folders:
            raise ValueError("There is no folder of a share. Give one for each rank, such as shares/rank-0.")
        self.timeout_s = timeout_s
        cores = share_out(len(folders)) if cores is None else cores
        spin_s = SPIN_S if len({core for own in cores for core in own}) >= len(folders) else 0.0
        self._log = tempfile.TemporaryFile()  # what the processes print besides their answers
        self._processes = [_Process(rank, module, self._log) for rank in range(len(folders))]
        try:
            for process, folder, own in zip(self._processes, folders, cores, strict=True):
                threads = {"INFERENCE_NUM_THREADS": len(own), "ENABLE_CPU_PINNING": False} if own else {}
                settings = {"device": device, "properties": PRECISION | threads | properties}
                settings |= {"timeout_s": timeout_s, "spin_s": spin_s, "cores": list(own)}
                process.send(rank=process.rank, folder=str(folder), **settings)
            ports = [message["port"] for message in self.answers(START_S)]
            addresses, key = [f"{LOOPBACK}:{port}" for port in ports], secrets.token_hex(32)
            for process in self._processes:
                process.send(addresses=addresses, key=key)
            self.held = self.answers(START_S)  # by rank: heads, columns, vocabulary, weights_mb, cores
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes, by rank."""
        return [process.pid for process in self._processes]

    def generate(self, ids: Sequence[int], count: int, ends: Collection[int] = ()) -> Iterator[Step]:
        """Greedy decoding after a prompt: yields at most `count` steps, up to and with a token of `ends`.

        Raises RankFailed when a rank is gone or stuck, ValueError for an empty prompt.
        """
        self._ask(ids, do="generate", count=count, ends=sorted(ends))
        finished = False
        try:
            while True:
                messages = self.answers(self.timeout_s)
                finished = "done" in messages[0]
                if finished:
                    return
                tokens = {message["token"] for message in messages}
                if len(tokens) > 1:
                    raise self._failed(f"The ranks chose different tokens: {sorted(tokens)}.")
                fields = ("ms", "group_ms", "calls", "bytes", "cache_mb")
                yield Step(tokens.pop(), *([message[field] for message in messages] for field in fields))
        finally:
            while self._processes and not finished:  # the caller wants no more: let the ranks finish
                finished = "done" in self.answers(self.timeout_s)[0]

    def log_likelihoods(self, ids: Sequence[int]) -> np.ndarray:
        """The natural logarithm of the probability of each token after the first, float64 [n - 1]."""
        self._ask(ids, do="log_likelihoods")
        return np.array(self.answers(self.timeout_s)[0]["values"])

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """The logits of a prompt, float32 [1, tokens, vocabulary]."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits.npy"
            self._ask(ids, do="logits", file=str(file))
            self.answers(self.timeout_s)
            return np.load(file)

    def close(self) -> None:
        """End all processes."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.end()
        self._log.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, ids: Sequence[int], **request) -> None:
        ids = [int(token) for token in ids]
        if not ids:
            raise ValueError("The prompt has no token. Give at least one.")
        size = max(held["vocabulary"][1] for held in self.held)
        for token in ids:
            if not 0 <= token < size:  # a rank would take it for a token of another one, and read zeros
                raise ValueError(f"The prompt has the token {token}, and the model 0 to {size - 1}. Use its tokenizer.")
        self.ask(ids=ids, **request)

    def ask(self, **request) -> None:
        """Send a request to every rank. Raises RankFailed where they have ended."""
        if not self._processes:
            raise RankFailed("The ranks have ended. Start new ones.")
        for process in self._processes:
            process.send(**request)

    def answers(self, wait_s: float) -> list[dict]:
        """The next message of every rank. A rank gets time to report which other one is late.

        Raises what went wrong, after ending all processes.
        """
        deadline = monotonic() + wait_s + 5
        messages = []
        for process in self._processes:
            while (message := process.receive()) is None:
                if any(other.last for other in self._processes):
                    raise self._reason()
                if monotonic() > deadline:
                    raise self._failed(f"Rank {process.rank} did not answer within {wait_s + 5:g} s.")
            messages.append(message)
        return messages

    def _reason(self) -> Exception:
        """Why the ranks have failed: one that died without a word comes first, then errors, then who misses whom."""
        deadline = monotonic() + 1
        while monotonic() < deadline and not all(process.last for process in self._processes):
            for process in self._processes:
                process.receive()
        ended = [process for process in self._processes if process.last]
        for process in ended:
            if "error" not in process.last:
                return self._failed(f"Rank {process.rank} (process {process.pid}) {process.fate()}.")
        first = min(ended, key=lambda process: process.last["kind"] == "GroupFailed")
        if first.last["kind"] == "ValueError":
            self.close()
            return ValueError(first.last["error"])
        return self._failed(f"Rank {first.rank} reports: {first.last['error']}")

    def _failed(self, text: str) -> RankFailed:
        self.close()
        return RankFailed(f"{text} All ranks have been ended.")


class _Process:
    """The process of one rank. last: {"error", "kind"} or {"ended"} once it has ended."""

    def __init__(self, rank: int, module: str, log) -> None:
        root = Path(__file__).resolve().parents[__package__.count(".") + 1]
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "encoding": "utf-8"}
        command, environment = [sys.executable, "-m", module], os.environ | {"PYTHONPATH": path}
        self._process = subprocess.Popen(command, env=environment, **pipes)
        self.rank, self.pid, self.last = rank, self._process.pid, {}
        self._messages: queue.Queue = queue.Queue()
        self._reader = threading.Thread(target=_read, args=(self._process.stdout, self._messages), daemon=True)
        self._reader.start()

    def send(self, **content) -> None:
        try:
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()
        except OSError:  # it has ended: `receive` finds out
            pass

    def receive(self) -> dict | None:
        """The next message; None where there is none within POLL_S, or where the process has ended."""
        try:
            message = self._messages.get(timeout=POLL_S)
        except queue.Empty:
            return None
        if "error" in message or "ended" in message:
            self.last = self.last or message
            return None
        return message

    def fate(self) -> str:
        status = self._process.wait(5)
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()


def _read(lines: Iterable[str], messages: queue.Queue) -> None:
    for line in lines:
        messages.put(json.loads(line))
    messages.put({"ended": True})


def share_out(ranks: int) -> list[list[int]]:
    """The cores of this process for each rank: neighbours together, and one for several ranks where there are too few.

    Where the system does not say which cores there are, each list is empty, and the system chooses.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(ranks)]
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return [[cores[rank % len(cores)]] for rank in range(ranks)]
    return [[int(core) for core in own] for own in np.array_split(cores, ranks)]
