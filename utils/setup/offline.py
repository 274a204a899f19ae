"""`python -m utils.setup.offline COMMAND ...` runs a command with the network cut; only loopback works.

On Linux the command gets a network namespace of its own where the system allows one, which holds for every
program. Everywhere, each Python process is guarded as well (`utils/setup/guard/sitecustomize.py`).
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).resolve().parent / "guard"
NEW_USER, NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of sched.h
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP of net/if.h


def guarded(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environment` in which every Python process refuses to talk to anything but loopback."""
    paths = [str(GUARD), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def enter_namespace() -> None:
    """Move this process (Linux, single-threaded) into a new network namespace with loopback up.

    Without root it takes a user namespace too, in which the user keeps the own number.
    Raises OSError where the system does not allow it.
    """
    import ctypes
    import fcntl

    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare exists only from Python 3.12 on
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(NEW_NET) != 0:
        if libc.unshare(NEW_USER | NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), "The system gave no network namespace.")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="utf-8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        flags = struct.unpack("16sh", fcntl.ioctl(handle, GET_FLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(handle, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP))


def has_namespaces() -> bool:
    """Whether `enter_namespace` works here, tried in a child because a half-done move cannot be undone."""
    if not sys.platform.startswith("linux"):
        return False
    child = os.fork()
    if child == 0:
        try:
            enter_namespace()
        except (OSError, AttributeError):
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(arguments: Sequence[str]) -> int:
    """Run the command `arguments`; its exit status (and on POSIX its process, so its signals) become ours."""
    if not arguments:
        print("usage: python -m utils.setup.offline COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    environment = guarded(os.environ)
    if has_namespaces():
        enter_namespace()
    else:
        print("offline: no network namespace here, only Python processes are cut off.", file=sys.stderr)
    sys.stderr.flush()
    try:
        if os.name == "posix":
            os.execvpe(arguments[0], list(arguments), environment)
        return subprocess.run(list(arguments), env=environment).returncode
    except FileNotFoundError:
        print(f"offline: there is no command {arguments[0]!r}.", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
