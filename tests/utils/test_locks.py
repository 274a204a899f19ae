"""A second holder of a lock says that it waits, and goes on when the first has ended."""

import threading

from utils import locks


def test_the_second_waits_and_says_so(tmp_path, capsys):
    order, held, lock = [], threading.Event(), tmp_path / "lock"

    def second():
        held.wait()
        with locks.alone(lock, "waiting for the first"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locks.alone(lock, "never said"):
        held.set()
        while "waiting for the first" not in capsys.readouterr().err:
            pass
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
