"""OpenVINO's own distribution over two sockets: what MODEL_DISTRIBUTION_POLICY does, here and on a pretended socket.

`python -m notebooks.llm_distributed.measuring.sockets MODEL.xml` prints JSON: for each policy the property as it reads
back, threads, layer types, tokens and ms a token. With --pretend (Linux, root) the process sees each core as a socket
of its own: it runs in a mount namespace, in which altered copies lie over /sys/devices/system. Nothing outside changes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from utils.models.llm import Session

SYSTEM = Path("/sys/devices/system")
POLICIES = ("", "TENSOR_PARALLEL")
PROMPT, COUNT = (1, 4093, 198, 2683, 1), 24  # token ids of a short prompt; tokens to generate


def report(file: Path, precision: str = "f32") -> dict[str, dict]:
    """What each policy does with a language model, by policy."""
    return {policy or "default": _run(file, policy, precision) for policy in POLICIES}


def _run(file: Path, policy: str, precision: str) -> dict:
    properties = {"INFERENCE_PRECISION_HINT": precision}
    if policy:
        properties["MODEL_DISTRIBUTION_POLICY"] = policy
    session = Session(file, "CPU", **properties)
    compiled = session.request.get_compiled_model()
    types = Counter(node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())
    session.generate(np.array([PROMPT]), 4)
    begin = perf_counter()
    tokens = session.generate(np.array([PROMPT]), COUNT)[0].tolist()
    return {
        "policy": sorted(str(one) for one in compiled.get_property("MODEL_DISTRIBUTION_POLICY")),
        "threads": compiled.get_property("INFERENCE_NUM_THREADS"),
        "products": types["FullyConnected"],
        "layers": sum(types.values()),
        "tokens": tokens,
        "ms": 1e3 * (perf_counter() - begin) / COUNT,
    }


def pretended(file: Path) -> dict[str, dict]:
    """`report` in a process that sees each core as a socket. Raises OSError where that is not possible."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise OSError("A second socket is pretended on Linux by root only. Run this there, or look at stored results.")
    with TemporaryDirectory() as scratch:
        altered = alter(Path(scratch))
        mounts = [f"mount --bind {shlex.quote(str(altered / name))} {SYSTEM / name}" for name in ("cpu", "node")]
        command = shlex.join([sys.executable, "-m", __spec__.name, str(file)])
        script = " && ".join([*mounts, f"exec {command}"])
        run = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, encoding="utf-8")
    if run.returncode:
        raise OSError(f"The process with pretended sockets failed: {run.stderr.strip().splitlines()[-1:]}")
    return json.loads(run.stdout.splitlines()[-1])


def alter(folder: Path) -> Path:
    """Write copies of what Linux says about cores and nodes, in which each core is a socket and a node of its own."""
    for source in [SYSTEM / "cpu", *SYSTEM.glob("cpu/cpu[0-9]*/topology"), *SYSTEM.glob("cpu/cpu[0-9]*/cache/index*")]:
        target = folder / source.relative_to(SYSTEM)
        target.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if file.is_file():
                try:
                    (target / file.name).write_bytes(file.read_bytes())
                except OSError:  # some cannot be read
                    pass
    cores = sorted(int(path.name.removeprefix("cpu")) for path in (folder / "cpu").glob("cpu[0-9]*"))
    for core in cores:
        own = folder / "cpu" / f"cpu{core}"
        for name in (
            "physical_package_id",
            "die_id",
            "core_siblings_list",
            "package_cpus_list",
            "thread_siblings_list",
            "core_cpus_list",
            "die_cpus_list",
        ):
            (own / "topology" / name).write_bytes(b"%d\n" % core)
        for file in own.glob("cache/index*/shared_cpu_list"):
            file.write_bytes(b"%d\n" % core)
        node = folder / "node" / f"node{core}"
        node.mkdir(parents=True)
        (node / "cpulist").write_bytes(b"%d\n" % core)
    names = f"{cores[0]}-{cores[-1]}\n"
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        (folder / "node" / name).write_text(names, encoding="ascii")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Show what MODEL_DISTRIBUTION_POLICY does with a language model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--pretend", action="store_true", help="let each core look like a socket (Linux, root)")
    options = parser.parse_args()
    print(json.dumps((pretended if options.pretend else report)(options.model)))


if __name__ == "__main__":
    main()
