"""The proxy that delays: what goes through it, in which order, and what it counts."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.slow_way import slow_way

SECONDS = 60


@contextmanager
def echo() -> Iterator[int]:
    """A server that answers each line with itself, and ends a connection behind an empty one."""

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            while (line := stream.readline()).strip():
                stream.write(line)
                stream.flush()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_all_that_is_sent_arrives_in_order_and_turns_are_counted() -> None:
    with echo() as port, slow_way(port, 0.01) as way:
        connections = [socket.create_connection(("127.0.0.1", way.port), SECONDS) for _ in range(2)]
        for connection in connections:
            with connection, connection.makefile("rwb") as stream:
                for number in range(3):
                    line = bytes(str(number), "ascii") * 100_000 + b"\n"
                    stream.write(line)
                    stream.flush()
                    assert stream.readline() == line
                stream.write(b"\n")
                stream.flush()
                assert stream.read() == b""
        # Of the ends of the connections each is one too: they are asked for and come.
        assert way.num_turns == 2 * 4


def test_who_leaves_ends_the_connection_there_and_whoever_is_not_there_ends_it_here() -> None:
    with echo() as port, slow_way(port, 0.0) as way:
        with socket.create_connection(("127.0.0.1", way.port), SECONDS) as connection:
            connection.sendall(b"x\n")
            assert connection.recv(10) == b"x\n"
        gone = port
    with slow_way(gone, 0.0) as way, socket.create_connection(("127.0.0.1", way.port), SECONDS) as connection:
        assert connection.recv(10) == b""
