"""Limits of containers, messages about what is missing, and the death of a child process."""

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from utils import paths, preflight


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("not to be sent")


def add(first, second):
    return first + second, os.getpid()


REMEMBERED: list[str] = []


def remember(word: str) -> list[str]:
    REMEMBERED.append(word)
    return REMEMBERED


def refuse():
    raise ValueError("the prompt is empty")


def refuse_unsendably():
    raise Unsendable("odd")


def make_lock():
    return threading.Lock()


def print_colours():
    print("colours:", os.environ.get("FORCE_COLOR"), os.environ.get("CLICOLOR_FORCE"))


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(7)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """16 GB of RAM, 10 of them free, and no control groups."""
    memory = SimpleNamespace(total=16e9, available=10e9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(preflight, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(preflight, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n", encoding="utf-8")


def test_without_groups_the_machine_decides(machine):
    assert (preflight.free_gb(), preflight.total_gb()) == (10.0, 16.0)


def test_cgroup_v2_limit_of_an_ancestor_counts_without_its_cache(machine):
    (machine / "membership").write_text("0::/box/app\n", encoding="utf-8")
    group(machine / "cgroup" / "box" / "app", memory__max="max", memory__current=int(1e9))
    group(
        machine / "cgroup" / "box",
        memory__max=int(4e9),
        memory__current=int(3e9),
        memory__stat="anon 1\ninactive_file 500000000",
    )
    assert (preflight.free_gb(), preflight.total_gb()) == (1.5, 4.0)


def test_cgroup_v2_limit_at_the_root_of_a_containers_mount(machine):
    (machine / "membership").write_text("0::/../outside\n", encoding="utf-8")
    group(machine / "cgroup", memory__max=int(2e9), memory__current=int(5e8))
    assert preflight.free_gb() == 1.5


def test_cgroup_v1_limit(machine):
    (machine / "membership").write_text("3:cpuset:/\n4:memory:/box\n1:name=systemd:/\n", encoding="utf-8")
    group(
        machine / "cgroup" / "memory" / "box",
        memory__limit_in_bytes=int(3e9),
        memory__usage_in_bytes=int(2e9),
        memory__stat="total_inactive_file 250000000",
    )
    group(  # v1 says "no limit" with a number beyond any memory
        machine / "cgroup" / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=int(9e9)
    )
    assert (preflight.free_gb(), preflight.total_gb()) == (1.25, 3.0)


def test_a_group_over_its_limit_has_nothing_free(machine):
    (machine / "membership").write_text("0::/\n", encoding="utf-8")
    group(machine / "cgroup", memory__max=int(1e9), memory__current=int(2e9))
    assert preflight.free_gb() == 0


def test_too_little_memory_is_an_error(machine):
    preflight.check(ram_gb=10)
    with pytest.raises(preflight.NotEnough) as refusal:
        preflight.check(ram_gb=12, what="Converting Qwen")
    assert str(refusal.value).startswith("Converting Qwen needs 12 GB of memory, and 10 GB are free. Close")
    assert isinstance(refusal.value, OSError)


def test_too_little_disk_is_an_error(machine, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=3e9))
    preflight.check(disk_gb=3, path=machine / "not" / "yet")
    with pytest.raises(preflight.NotEnough, match=r"needs 5 GB of disk at .*yet, and 3 GB are free"):
        preflight.check(disk_gb=5, path=machine / "not" / "yet")
    assert asked == [machine, machine]
    monkeypatch.setenv("MODELS_DIR", str(machine / "models"))
    with pytest.raises(preflight.NotEnough, match="models"):
        preflight.check(disk_gb=5)


def test_a_child_returns_its_result_from_another_process():
    total, process = preflight.in_child(add, 2, 3)
    assert total == 5 and process != os.getpid()
    assert preflight.in_child(math.factorial, 5) == 120


def test_a_child_keeps_what_its_calls_leave_behind():
    with preflight.Child() as child:
        assert [child.call(remember, word) for word in ("a", "b")] == [["a"], ["a", "b"]]
        with pytest.raises(ValueError, match="the prompt is empty"):
            child.call(refuse)
        assert child.call(remember, "c") == ["a", "b", "c"]  # it goes on after an error
    assert remember("d") == ["d"]
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(child.pid)


def test_a_childs_exception_is_raised_here():
    with pytest.raises(ValueError, match="the prompt is empty"):
        preflight.in_child(refuse)


def test_the_traceback_of_a_childs_exception_keeps_no_buffer():
    """Where one is in a cycle, the garbage collector of Python 3.12.1 crashes."""

    def buffers() -> int:
        return sum(type(own) is memoryview for own in gc.get_objects())

    before = buffers()
    with pytest.raises(ValueError, match="the prompt is empty") as failure:
        preflight.in_child(refuse)
    assert failure.tb is not None and buffers() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombies")
def test_a_child_that_died_between_two_calls_is_an_error():
    with pytest.raises(RuntimeError, match="Converting failed: its process was killed"):
        with preflight.Child("Converting") as child:
            child.call(add, 1, 2)
            process = psutil.Process(child.pid)
            process.kill()
            while process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
            child.call(add, 1, 2)


def test_what_cannot_be_sent_back_is_an_error():
    with pytest.raises(RuntimeError, match="The result of make_lock cannot be sent back"):
        preflight.in_child(make_lock)
    with pytest.raises(RuntimeError, match=r"The error \(Unsendable\('odd'\)\) of refuse_unsendably"):
        preflight.in_child(refuse_unsendably)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_child_becomes_an_error_about_memory():
    with pytest.raises(RuntimeError, match=r"Converting failed: its process was killed.*GB are free now"):
        preflight.in_child(kill_itself, what="Converting")
    with pytest.raises(RuntimeError, match=r"It needs 0.01 GB"):
        preflight.in_child(kill_itself, what="Converting", ram_gb=0.01)


def test_a_child_that_leaves_without_a_result():
    with pytest.raises(RuntimeError, match="Converting failed: its process ended with status 7"):
        preflight.in_child(leave, what="Converting")


def test_a_child_is_not_started_without_the_memory(machine):
    with pytest.raises(preflight.NotEnough, match="Work needs 99 GB"):
        preflight.in_child(kill_itself, what="Work", ram_gb=99)


def test_a_child_prints_to_the_error_stream_and_without_colours(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    preflight.in_child(print_colours)
    assert capfd.readouterr() == ("", "colours: None None\n")


def test_functions_of_a_module_that_python_started_by_name(tmp_path):
    """`python -m notebooks.<case>.measuring` passes its own functions to `bench.peak_rss_mb`."""
    (tmp_path / "measure.py").write_text(
        "from utils import bench, preflight\n"
        "def allocate():\n"
        "    bytes(1000)\n"
        "if __name__ == '__main__':\n"
        "    print(bench.peak_rss_mb(allocate) > 1, preflight.in_child(allocate))\n",
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    for command in (["-m", "measure"], ["measure.py"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            encoding="utf-8",
        )
        if command[0] == "-m":
            assert done.stdout == "True None\n", done.stderr
        else:  # a script cannot be imported
            assert "ValueError" in done.stderr and "at the top level of a module" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_child_ends_with_its_parent(tmp_path):
    (tmp_path / "sleeper.py").write_text(
        "import os, time\n"
        "def sleep(file):\n"
        "    with open(file, 'w') as stream:\n"
        "        stream.write(f'{os.getpid()}\\n')\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import sleeper\nfrom utils import preflight\npreflight.in_child(sleeper.sleep, 'pid')\n", encoding="utf-8"
    )
    with subprocess.Popen(
        [sys.executable, script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(paths.ROOT)}
    ) as parent:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text(encoding="utf-8").endswith("\n")):
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.05)
        child = psutil.Process(int((tmp_path / "pid").read_text(encoding="utf-8")))
        parent.kill()
    assert psutil.wait_procs([child], timeout=20)[0]


def test_functions_that_another_process_cannot_import():
    def local():
        return 1

    for function in (local, lambda: 1):
        with pytest.raises(ValueError, match="top level of a module"):
            preflight.in_child(function)
