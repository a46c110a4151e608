"""An inference server on the CPU: a step is a request, from its header to the answer's last byte.

python -m bench.diagnosis.workloads.inference_server FOLDER LIBRARY ADDRESS PORT PEER SEED
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Final

import torch

from bench.diagnosis.shared import Knobs, StepLog
from bench.diagnosis.workloads.pieces import (
    KIB,
    MIB,
    RequestMarks,
    connect,
    job_files,
    listen,
    receive_block,
    send_block,
    tuned,
)

_WIDTH: Final = 256
_ANSWER_BYTES: Final = 64 * KIB
_LOOK_UP_BYTES: Final = 32 * KIB


class Server:
    """One thread; requests wait in their connections until it is free."""

    def __init__(self, folder: Path, library: Path, peer: tuple[str, int], seed: int) -> None:
        torch.manual_seed(seed)
        self.knobs = Knobs(folder)
        self._layers = torch.nn.Sequential(
            torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH)
        )
        self._inputs = torch.randn(128, _WIDTH)
        self._disk, self._cached = job_files(folder, seed)
        self._features = connect(*peer)
        self._marks = RequestMarks(library, StepLog(folder))
        self._buffer = bytearray(4 * MIB)

    def serve(self, connection: socket.socket) -> bool:
        """Answer one request; returns whether the client is still there."""
        return self._marks.serve(lambda: self._answer(connection)) == 1

    def _answer(self, connection: socket.socket) -> int:
        try:
            if receive_block(connection, self._buffer) == 0:
                return 0
            self._look_up()
            self._disk.read(2)
            self._cached.read(128)
            with torch.no_grad():
                self._layers(self._inputs)
            send_block(connection, _ANSWER_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            return 0
        return 1

    def _look_up(self) -> None:
        began = time.monotonic()
        send_block(self._features, _LOOK_UP_BYTES)
        if receive_block(self._features, self._buffer) == 0:
            raise RuntimeError("expected features, the store has closed")
        self.knobs.add("exchange_wait_s", time.monotonic() - began)


def main(folder: Path, library: Path, address: str, port: int, peer: str, seed: int) -> None:
    server = Server(folder, library, (peer, port + 1), seed)
    with selectors.DefaultSelector() as ready, listen(address, port) as listener:
        ready.register(listener, selectors.EVENT_READ)
        while server.knobs["stop"] == 0:
            for key, _ in ready.select(1.0):
                if key.fileobj is listener:
                    client = tuned(listener.accept()[0])
                    ready.register(client, selectors.EVENT_READ, client)
                elif not server.serve(key.data):
                    ready.unregister(key.data)
                    key.data.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, library, address, port, peer, seed = sys.argv[1:]
    main(Path(folder), Path(library), address, int(port), peer, int(seed))
