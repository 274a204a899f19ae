"""A group of processes that exchange arrays: every rank calls the same operations in the same order.

`TcpGroup` needs sockets only, on one machine or on several. `mpi.MpiGroup` needs mpi4py and an MPI library. Both have
the same operations and counters, and give up after a time that you choose.
"""

from __future__ import annotations

import hmac
import select
import socket
import struct
from collections.abc import Sequence
from time import monotonic, perf_counter, sleep

import numpy as np

LOOPBACK = "127.0.0.1"
HEADER = struct.Struct("<II")  # number of the message, bytes that follow
HELLO = struct.Struct("<I32s")  # rank, key of the group


class GroupFailed(RuntimeError):
    """Another rank is gone, late, or does something else; the message names it."""


class Group:
    """The operations that all engines share. An engine has `_exchange`.

    rank: of this process; size: number of ranks. Counters since the last `reset_counters`: calls, bytes_sent by this
    rank, and seconds that it spent in the group, which include waiting for slower ranks.
    """

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.failure: GroupFailed | None = None  # what went wrong where no error can be raised
        self.reset_counters()

    def reset_counters(self) -> None:
        self.calls, self.bytes_sent, self.seconds = 0, 0, 0.0

    def count(self, array: np.ndarray, begin: float) -> None:
        """Add a call that sent an array to every other rank and began at `begin` (perf_counter)."""
        self.calls += 1
        self.bytes_sent += array.nbytes * (self.size - 1)
        self.seconds += perf_counter() - begin

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """The arrays of all ranks, by rank; they have one shape and type. Raises GroupFailed."""
        begin = perf_counter()
        parts = self._exchange(np.ascontiguousarray(array))
        self.count(array, begin)
        return parts

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The sum of the arrays of all ranks. It is added by rank, so that all ranks get the same bits."""
        first, *others = self.all_gather(array)
        total = first
        for part in others:
            total = total + part
        return total

    def _exchange(self, array: np.ndarray) -> list[np.ndarray]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class TcpGroup(Group):
    """Every rank has a connection to every other one, and sends its array to all of them."""

    def __init__(
        self,
        rank: int,
        listener: socket.socket,
        addresses: Sequence[str],
        key: bytes,
        timeout_s: float = 10.0,
        spin_s: float = 0.002,
    ) -> None:
        """Join the group: connect to all lower ranks, wait for all higher ones.

        listener: a socket that listens at addresses[rank]; addresses: "host:port" of each rank. key: 32 secret bytes
        that every rank must show. timeout_s: for joining, and for each exchange. spin_s: how long to ask without pause
        before waiting for the system to wake this process; 0 where ranks share a core.
        """
        super().__init__(rank, len(addresses), timeout_s)
        self._spin_s = spin_s
        self._sockets: dict[int, socket.socket] = {}
        self._sent, self._received = ([0] * len(addresses) for _ in range(2))  # messages to and from each rank
        deadline = monotonic() + timeout_s
        for other in range(rank):
            self._sockets[other] = _connected(addresses[other], other, deadline)
            self._sockets[other].sendall(HELLO.pack(rank, key))
        while len(self._sockets) < self.size - 1:
            missing = sorted(set(range(rank + 1, self.size)) - set(self._sockets))
            listener.settimeout(max(0.01, deadline - monotonic()))
            try:
                connection, _ = listener.accept()
                connection.settimeout(5)
                other, shown = HELLO.unpack(_received(connection, HELLO.size))
            except (TimeoutError, ConnectionError, struct.error):
                if monotonic() > deadline:
                    raise GroupFailed(f"Rank {missing[0]} did not join within {timeout_s:g} s. Start it.") from None
                continue
            if other in missing and hmac.compare_digest(shown, key):
                self._sockets[other] = connection
            else:
                connection.close()  # a stranger
        for connection in self._sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _exchange(self, array: np.ndarray) -> list[np.ndarray]:
        data = array.tobytes()
        buffers = self._transfer(dict.fromkeys(self._sockets, data), dict.fromkeys(self._sockets, len(data)))
        parts = {other: np.frombuffer(buffer, array.dtype, offset=HEADER.size) for other, buffer in buffers.items()}
        return [array if rank == self.rank else parts[rank].reshape(array.shape) for rank in range(self.size)]

    def send(self, array: np.ndarray, other: int) -> None:
        """Send an array to one other rank, which calls `receive`. Raises GroupFailed."""
        begin = perf_counter()
        self._transfer({other: array.tobytes()}, {})
        self.calls += 1
        self.bytes_sent += array.nbytes
        self.seconds += perf_counter() - begin

    def receive(self, shape: Sequence[int], dtype, other: int) -> np.ndarray:
        """The array of a shape and type that another rank sends next. Raises GroupFailed."""
        begin, dtype = perf_counter(), np.dtype(dtype)
        buffer = self._transfer({}, {other: int(np.prod(shape)) * dtype.itemsize})[other]
        self.seconds += perf_counter() - begin
        return np.frombuffer(buffer, dtype, offset=HEADER.size).reshape(shape)

    def _transfer(self, messages: dict[int, bytes], sizes: dict[int, int]) -> dict[int, bytearray]:
        """Send messages, and receive one of a known size, with its header, from each rank in `sizes`."""
        headed = {other: HEADER.pack(self._sent[other], len(data)) + data for other, data in messages.items()}
        sending = {other: memoryview(message) for other, message in headed.items()}
        buffers = {other: bytearray(HEADER.size + size) for other, size in sizes.items()}
        receiving = {other: memoryview(buffer) for other, buffer in buffers.items()}
        begin = active = perf_counter()
        while sending or receiving:
            moved = [self._send_some(sending, other) for other in list(sending)]
            moved += [self._receive_some(receiving, buffers, other) for other in list(receiving)]
            now = perf_counter()
            if any(moved):
                active = now
            elif now - active > self._spin_s:
                self._wait(sending, receiving, begin + self.timeout_s - now)
        for counters, others in ((self._sent, messages), (self._received, sizes)):
            for other in others:
                counters[other] = counters[other] + 1 & 0xFFFFFFFF
        return buffers

    def _send_some(self, sending: dict[int, memoryview], other: int) -> bool:
        try:
            count = self._sockets[other].send(sending[other])
        except BlockingIOError:
            return False
        except OSError:
            raise GroupFailed(f"Rank {other} is gone: it closed its connection to rank {self.rank}.") from None
        sending[other] = sending[other][count:]
        if not sending[other]:
            del sending[other]
        return True

    def _receive_some(self, receiving: dict[int, memoryview], buffers: dict[int, bytearray], other: int) -> bool:
        try:
            count = self._sockets[other].recv_into(receiving[other])
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            raise GroupFailed(f"Rank {other} is gone: it closed its connection to rank {self.rank}.")
        receiving[other] = receiving[other][count:]
        filled = len(buffers[other]) - len(receiving[other])
        if filled >= HEADER.size:
            number, size = HEADER.unpack_from(buffers[other])
            expected = len(buffers[other]) - HEADER.size
            if (number, size) != (self._received[other], expected):
                raise GroupFailed(
                    f"Rank {other} sent {size} bytes as message {number}, rank {self.rank} expected {expected} as "
                    f"message {self._received[other]}. All ranks must run the same model on the same input."
                )
        if not receiving[other]:
            del receiving[other]
        return True

    def _wait(self, sending: dict, receiving: dict, left_s: float) -> None:
        """Sleep until something can be sent or received. Raises GroupFailed where time is up."""
        if left_s > 0:
            readers, writers = ([self._sockets[other] for other in waiting] for waiting in (receiving, sending))
            select.select(readers, writers, [], left_s)
        else:
            late = min({*sending, *receiving})
            raise GroupFailed(f"Rank {late} did not answer rank {self.rank} within {self.timeout_s:g} s.")

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()


def listen(host: str = LOOPBACK) -> socket.socket:
    """A socket for `TcpGroup` that listens at a free port of a host's address."""
    return socket.create_server((host, 0))


def _connected(address: str, other: int, deadline: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except OSError as error:
            if monotonic() > deadline:
                raise GroupFailed(f"Rank {other} does not listen at {address} ({error}). Start it.") from error
            sleep(0.05)


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data
