"""Memory of child processes, as conversions are measured; the notebooks' tests write and convert checkpoints."""

import subprocess
import sys

import psutil

from utils.models import random_checkpoint


def test_the_memory_of_children_is_watched():
    hold = "import time; held = bytearray(150_000_000); time.sleep(1)"
    with random_checkpoint.MemoryWatch() as watch:
        subprocess.run([sys.executable, "-S", "-c", hold], check=True)
    assert 140 < watch.peak_mb < 400 and watch.seconds > 1


def test_a_child_that_shows_its_parents_memory_holds_none_of_its_own():
    here = psutil.Process()
    assert random_checkpoint._rss(here, here.cmdline()) == 0 < random_checkpoint._rss(here, ["python"])
