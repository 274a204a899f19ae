"""The network is cut for the command and its children, loopback is not, and the exit status comes through."""

import os
import signal
import subprocess
import sys

import pytest

from utils.setup import offline

RUN = [sys.executable, "-m", "utils.setup.offline"]
TRY = """
import socket, sys
try:
    {attempt}
except OSError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""
LOOPBACK = """
import socket
server = socket.create_server((HOST, 0), family=FAMILY)
client = socket.create_connection(server.getsockname()[:2], 5)
client.sendall(b"over loopback")
print(server.accept()[0].recv(100).decode(), socket.getaddrinfo("localhost", 80)[0][4][1])
socket.getaddrinfo("::ffff:127.0.0.1", 80)
"""
ATTEMPTS = {
    "name": 'socket.getaddrinfo("example.org", 80)',
    "address": 'socket.socket().connect(("192.0.2.1", 80))',
    "IPv6": 'socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80))',
    "mapped": 'socket.socket(socket.AF_INET6).connect(("::ffff:192.0.2.1", 80))',
    "datagram": 'socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))',
    "reverse": 'socket.gethostbyaddr("192.0.2.1")',
    "client": '__import__("urllib.request").request.urlopen("http://example.org/", timeout=5)',
}


def run(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_guard_refuses_what_is_outside(attempt: str) -> None:
    done = run(sys.executable, "-c", TRY.format(attempt=attempt), env=offline.guarded(os.environ))
    assert done.returncode == 1
    assert "The network is cut (utils.setup.offline)" in done.stderr


def test_guard_reaches_grandchildren_and_notes_refusals(tmp_path) -> None:
    log = tmp_path / "refused"
    inner = [sys.executable, "-c", TRY.format(attempt=ATTEMPTS["address"])]
    outer = f"import subprocess, sys; sys.exit(subprocess.run({inner!r}).returncode)"
    done = run(*RUN, sys.executable, "-c", outer, env={**os.environ, "OFFLINE_LOG": str(log)})
    assert done.returncode == 1
    assert "was refused" in done.stderr
    assert log.read_text(encoding="utf-8") == "socket.connect 192.0.2.1\n"


@pytest.mark.parametrize("host, family", [("127.0.0.1", "socket.AF_INET"), ("localhost", "socket.AF_INET")])
def test_loopback_works(host: str, family: str) -> None:
    code = LOOPBACK.replace("HOST", repr(host)).replace("FAMILY", family)
    done = run(*RUN, sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (0, "over loopback 80\n"), done.stderr


@pytest.mark.skipif(not offline.has_namespaces(), reason="this system gives no network namespace")
def test_namespace_holds_for_other_programs_too() -> None:
    lines = run(*RUN, "cat", "/proc/net/dev").stdout.splitlines()
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["lo"]
    code = "import socket; socket.socket().connect(('192.0.2.1', 80))"
    done = run(*RUN, sys.executable, "-E", "-S", "-c", code)  # without the guard
    assert "unreachable" in done.stderr


def test_without_a_namespace_the_guard_still_holds(monkeypatch) -> None:
    code = (
        "import sys; from utils.setup import offline; offline.has_namespaces = lambda: False; "
        "sys.exit(offline.main(sys.argv[1:]))"
    )
    done = run(sys.executable, "-c", code, sys.executable, "-c", TRY.format(attempt=ATTEMPTS["name"]))
    assert done.returncode == 1
    assert "only Python processes are cut off" in done.stderr
    assert "was refused" in done.stderr


def test_exit_status_comes_through() -> None:
    assert run(*RUN, sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert run(*RUN, sys.executable, "-c", "").returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_signals_come_through() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run(*RUN, sys.executable, "-c", code).returncode == -signal.SIGTERM
    with subprocess.Popen(
        [*RUN, sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"1\n"
        process.terminate()  # goes to the command itself, which took the place of utils.setup.offline
        assert process.wait(30) == -signal.SIGTERM


def test_usage_and_unknown_command() -> None:
    assert run(*RUN).returncode == 2
    done = run(*RUN, "no-such-command-anywhere")
    assert done.returncode == 127
    assert "there is no command 'no-such-command-anywhere'" in done.stderr


def test_guarded_keeps_the_path_it_finds() -> None:
    made = offline.guarded({"PYTHONPATH": "before", "OTHER": "1"})
    assert made == {"PYTHONPATH": f"{offline.GUARD}{os.pathsep}before", "OTHER": "1"}
