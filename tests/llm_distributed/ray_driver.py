"""`python -m tests.llm_distributed.ray_driver FOLDER COUNT`: an offline job for a test that kills it in the middle."""

import sys
import time
from pathlib import Path

from notebooks.llm_distributed.measuring.scaling import Counted, sums
from notebooks.llm_distributed.server import offline
from utils.ray_cluster.cluster import Cluster

SETTINGS = {"model": "slow"}
BATCH = 4


class Slow:
    """Answers a batch with its prompts in capitals, after a moment in which it can be killed."""

    def __call__(self, prompts):
        time.sleep(0.25)
        return [prompt.upper() for prompt in prompts]


def run(folder: Path, count: int) -> Path:
    arguments = (folder / "begun", Slow)
    return offline.run(sums(count), folder, Counted, arguments, settings=SETTINGS, batch=BATCH)


if __name__ == "__main__":
    with Cluster():
        run(Path(sys.argv[1]), int(sys.argv[2]))
