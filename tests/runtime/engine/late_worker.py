"""An engine's process whose socket for requests connects only after it has said that it is ready."""

import threading
import time

import zmq

from ramet.runtime.engine import worker

SECONDS = 0.5

_connect = worker._connect


def connect_late(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, address: str) -> "zmq.Socket[bytes]":
    if kind != zmq.PULL:
        return _connect(context, kind, address)
    # The worker reads from the near end; the far one, which the parent knows, is connected later.
    near = context.socket(zmq.PULL)
    near.bind("inproc://late")
    threading.Thread(target=_carry, args=(context, address), daemon=True).start()
    return near


def _carry(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
    time.sleep(SECONDS)
    far, forward = _connect(context, zmq.PULL, address), context.socket(zmq.PUSH)
    forward.connect("inproc://late")
    with far, forward:
        while True:
            frame = far.recv()
            forward.send(frame)


def main(options_text: str) -> None:
    worker._connect = connect_late
    worker.main(options_text)
