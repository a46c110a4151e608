"""The other end of an exchange: receives a block, thinks, sends one back.

python -m bench.diagnosis.workloads.step_peer FOLDER ADDRESS PORT SEED
"""

from __future__ import annotations

import random
import socket
import sys
import time
from pathlib import Path

from bench.diagnosis.shared import Knobs
from bench.diagnosis.workloads.pieces import MIB, Copies, listen, receive_block, send_block, tuned


def main(folder: Path, address: str, port: int, seed: int) -> None:
    knobs, copies, chance = Knobs(folder), Copies(MIB // 2), random.Random(seed)
    with listen(address, port) as listener:
        while True:
            connection, _ = listener.accept()
            with tuned(connection):
                _answer(connection, knobs, copies, chance)


def _answer(connection: socket.socket, knobs: Knobs, copies: Copies, chance: random.Random) -> None:
    buffer = bytearray(4 * MIB)
    try:
        while size := receive_block(connection, buffer):
            copies.copy(1)
            delay_ms = knobs["peer_delay_ms"]
            if delay_ms > 0 and chance.random() < knobs["peer_share"]:
                time.sleep(delay_ms / 1e3 * chance.uniform(0.7, 1.3))
            send_block(connection, size)
    except (BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
