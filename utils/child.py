"""The process that `preflight.Child` starts: it calls functions and sends back what they return or raise.

`multiprocessing` would run the parent's script again in the child. This file is run in its place, and is given the
function by name. Parent and child talk over the child's standard input and output, two pipes that no other process
holds. What comes through them is pickled, as between the processes of `multiprocessing` and with its pickler; nothing
is ever unpickled from a file.

Standard input: a line of JSON, {"path": sys.path, "main": module that the parent was started as or null, "parent":
process id}, then for each call (function, arguments), pickled. Standard output: for each call (True, result) or (False,
exception), pickled. The length of each pickle comes before it, in 8 bytes. The process ends with its standard input.
"""

import importlib
import json
import os
import sys
import threading
import time
from multiprocessing.reduction import ForkingPickler

import psutil

_main: str | None = None


def __getattr__(name: str):
    """What the parent's `__main__` defines, if `python -m` started it: pickled functions name that module so here."""
    if _main is None or name.startswith("__"):
        raise AttributeError(f"{name} is defined in a script or a notebook, which another process cannot import")
    return getattr(importlib.import_module(_main), name)


def main() -> None:
    global _main
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is news of its progress, not output of a notebook's cell
    sys.stdout = sys.stderr
    jobs = sys.stdin.buffer
    start = json.loads(jobs.readline())
    sys.path[:], _main = start["path"], start["main"]
    threading.Thread(target=_end_with, args=(start["parent"],), daemon=True).start()
    while length := jobs.read(8):
        answer = _outcome(jobs.read(int.from_bytes(length, "little")))
        answers.write(len(answer).to_bytes(8, "little") + answer)
        answers.flush()


def _end_with(parent: int) -> None:
    """End this process when process `parent` has ended, even if that was killed."""
    try:
        process = psutil.Process(parent)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(1)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)


def _outcome(job: bytes) -> bytes:
    """The pickled (True, result) or (False, exception) of the pickled (function, arguments)."""
    try:
        function, arguments = ForkingPickler.loads(job)
    except AttributeError as error:
        error = ValueError(f"{error}. Put what is passed to another process at the top level of a module (.py file).")
        return ForkingPickler.dumps((False, error))
    except Exception as error:  # whatever the import of its module raises
        return _pickled((False, error), "the arguments")
    try:
        outcome = (True, function(*arguments))
    except Exception as error:
        outcome = (False, error)
    return _pickled(outcome, function.__qualname__)


def _pickled(outcome: tuple[bool, object], origin: str) -> bytes:
    try:
        return ForkingPickler.dumps(outcome)
    except Exception as error:  # neither every result nor every exception can be pickled
        about = "result" if outcome[0] else f"error ({outcome[1]!r})"
        message = f"The {about} of {origin} cannot be sent back: {error}"
        return ForkingPickler.dumps((False, RuntimeError(message)))


if __name__ == "__main__":
    main()
