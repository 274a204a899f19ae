"""The group over sockets: the same bits on all ranks, no deadlock, and errors that name a rank."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from notebooks.llm_distributed.pipeline.group import LOOPBACK, GroupFailed, TcpGroup, listen

KEY = bytes(range(32))


def together(size: int, work, **options) -> list:
    """What `work(group)` returns or raises on each of `size` ranks, each in a thread."""
    listeners = [listen() for _ in range(size)]
    addresses = [f"{LOOPBACK}:{listener.getsockname()[1]}" for listener in listeners]

    def run(rank: int):
        group = TcpGroup(rank, listeners[rank], addresses, KEY, **{"timeout_s": 5, "spin_s": 0} | options)
        try:
            return work(group)
        except GroupFailed as error:
            return error
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_get_the_same_sum(size):
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((size, 2, 7)).astype(np.float32)
    found = together(size, lambda group: group.all_reduce(arrays[group.rank]))
    assert all(np.array_equal(found[0], one) for one in found)
    assert found[0] == pytest.approx(arrays.sum(0), abs=1e-6) and found[0].dtype == np.float32


def test_all_gather_is_in_the_order_of_ranks():
    found = together(3, lambda group: group.all_gather(np.array([group.rank, 7])))
    assert all(np.array_equal(one, [[0, 7], [1, 7], [2, 7]]) for one in found)


def test_arrays_larger_than_the_buffers_of_sockets_do_not_block():
    found = together(2, lambda group: float(group.all_reduce(np.full(5_000_000, group.rank + 1.0, np.float32))[-1]))
    assert found == [3.0, 3.0]


def test_calls_and_bytes_are_counted():
    def work(group):
        group.all_reduce(np.zeros(10, np.float32))
        group.all_gather(np.zeros(2, np.float64))
        return group.calls, group.bytes_sent, group.seconds > 0

    assert together(3, work) == [(2, 2 * (40 + 16), True)] * 3


def test_a_rank_that_leaves_is_named():
    found = together(3, lambda group: None if group.rank == 1 else group.all_reduce(np.zeros(4)))
    assert [str(one) for one in found if one is not None] == [
        "Rank 1 is gone: it closed its connection to rank 0.",
        "Rank 1 is gone: it closed its connection to rank 2.",
    ]


def test_a_late_rank_is_named():
    from time import sleep

    found = together(2, lambda group: sleep(1) if group.rank else group.all_reduce(np.zeros(4)), timeout_s=0.3)
    assert str(found[0]) == "Rank 1 did not answer rank 0 within 0.3 s."


def test_a_rank_with_another_array_is_named():
    found = together(2, lambda group: group.all_reduce(np.zeros(4 + group.rank, np.float32)))
    assert "Rank 1 sent 20 bytes as message 0, rank 0 expected 16 as message 0" in str(found[0])


def test_a_rank_that_does_not_join_is_named():
    listener = listen()
    with pytest.raises(GroupFailed, match="Rank 1 did not join within 0.2 s. Start it"):
        TcpGroup(0, listener, [f"{LOOPBACK}:1", f"{LOOPBACK}:2"], KEY, timeout_s=0.2)
    free = listen()
    address = f"{LOOPBACK}:{free.getsockname()[1]}"
    free.close()
    with pytest.raises(GroupFailed, match=f"Rank 0 does not listen at {address}"):
        TcpGroup(1, listener, [address, f"{LOOPBACK}:2"], KEY, timeout_s=0.2)


def test_a_stranger_without_the_key_is_not_let_in():
    listeners = [listen(), listen()]
    addresses = [f"{LOOPBACK}:{listener.getsockname()[1]}" for listener in listeners]

    def join(rank: int, key: bytes):
        try:
            TcpGroup(rank, listeners[rank], addresses, key, timeout_s=0.5).close()
        except GroupFailed as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(join, 0, KEY)
        pool.submit(join, 1, bytes(32)).result()
        assert first.result() == "Rank 1 did not join within 0.5 s. Start it."


def test_it_listens_on_this_machine_only():
    assert listen().getsockname()[0] == "127.0.0.1"


def test_one_rank_sends_to_another():
    def work(group):
        if group.rank == 0:
            group.send(np.arange(6, dtype=np.float32).reshape(2, 3), 2)
        if group.rank == 2:
            return group.receive((2, 3), np.float32, 0).tolist()
        return group.bytes_sent

    assert together(3, work) == [24, 0, [[0, 1, 2], [3, 4, 5]]]
