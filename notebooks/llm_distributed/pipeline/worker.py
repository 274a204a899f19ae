"""The process of a rank: `Ranks` starts it, and talks to it in lines of JSON over standard input and output.

First line in: the settings. Then the process chooses its cores, and only then imports openvino, whose threads keep the
cores that they were started on. First line out: {"port"}. Second line in: {"addresses", "key"}. Second line out: what
the rank holds. After that each line in is a request, answered by lines of which the last has "done".
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter

import numpy as np

from .group import Group, TcpGroup, listen

START_S = 120.0


def main(tcp: type[TcpGroup] = TcpGroup, make=None, serve=None, describe=None) -> int:
    """Serve until standard input ends; the exit status is 1 after an error, which is the last line.

    make: what the process runs, by default `Rank`; serve: answers a request to it; describe: what it holds.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**content) -> None:
        output.write(json.dumps(content) + "\n")
        output.flush()

    try:
        settings = json.loads(sys.stdin.readline())
        if settings["cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, settings["cores"])
        import openvino  # noqa: F401 - now, because others wait for this process after it joined

        group = _join(tcp, settings, answer)
        rank = (make or _rank)(settings["folder"], group, settings["device"], **settings["properties"])
        group.timeout_s = settings["timeout_s"]  # until here another rank may still be reading its weights
        answer(ready=True, **(describe or _held)(rank))
        for line in sys.stdin:
            (serve or _serve)(rank, json.loads(line), answer)
    except Exception as error:
        answer(error=str(error) or repr(error), kind=type(error).__name__)
        return 1
    return 0


def _rank(*arguments, **properties):
    from .rank import Rank  # imports openvino

    return Rank(*arguments, **properties)


def _join(tcp: type[TcpGroup], settings: dict, answer) -> Group:
    listener = listen()
    answer(port=listener.getsockname()[1])
    start = json.loads(sys.stdin.readline())
    key = bytes.fromhex(start["key"])
    return tcp(settings["rank"], listener, start["addresses"], key, START_S, settings["spin_s"])


def _held(rank) -> dict:
    share = rank.share
    return {
        "heads": share.heads,
        "kv_heads": share.kv_heads,
        "columns": share.columns,
        "vocabulary": share.vocabulary,
        "weights_mb": rank.weights_bytes / 1e6,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def _serve(rank, request: dict, answer) -> None:
    """Answer one request: "generate", "log_likelihoods" or "logits", with "ids" of a prompt."""
    ids, group = np.array([request["ids"]]), rank.group
    group.reset_counters()
    if request["do"] == "generate":
        begin = perf_counter()
        for token in rank.stream(ids, request["count"], request["ends"]):
            now = perf_counter()
            spent = {"ms": 1e3 * (now - begin), "group_ms": 1e3 * group.seconds}
            answer(token=token, **spent, calls=group.calls, bytes=group.bytes_sent, cache_mb=rank.cache_bytes() / 1e6)
            group.reset_counters()
            begin = perf_counter()
        answer(done=True)
    elif request["do"] == "log_likelihoods":
        answer(done=True, values=rank.log_likelihoods(ids).tolist())
    else:
        logits = rank.logits(ids)
        if group.rank == 0:
            np.save(request["file"], logits)
        answer(done=True)


if __name__ == "__main__":
    sys.exit(main())
