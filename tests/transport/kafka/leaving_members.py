"""Run as a program, which a test can end where a client hangs: members that leave in bad moments.

python -m tests.transport.kafka.leaving_members replaced|frozen BOOTSTRAP PREFIX SIDE
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import suppress

from tests.transport.conformance import PARTITIONS, TOPIC, append, poll_until, read_until
from transport.factory import Side, open_transport
from transport.interface import Consumer, Transport, TransportUnavailable
from transport.kafka.kafka_frame import KafkaSettings

GROUPS = 3
SWITCH_S = 0.05
HOLD_US = 250_000
LEASE_S = 2.0
TIMEOUT_S = {"replaced": 20.0, "frozen": 2.0}
"""A busy broker takes seconds to let a member in; one that stands still is waited for in vain."""
JOIN_TRIES = 10


def leave_replaced(log: Transport) -> None:
    """Leave slowly: callbacks wait for the interpreter's lock, and `hold_broadcast` is loaded."""
    members = _replaced(log)
    ctypes.c_uint.in_dll(ctypes.CDLL(None), "hold_us").value = HOLD_US
    sys.setswitchinterval(SWITCH_S)
    threading.Thread(target=_compute, daemon=True).start()
    for member in members:
        member.close()


def leave_frozen(log: Transport) -> None:
    """Join, say so, and after a line from outside leave with a record unsent."""
    consumer, producer = log.consumer("g", [TOPIC]), log.producer()
    for _ in range(JOIN_TRIES):
        with suppress(TransportUnavailable):
            read_until(consumer, 1)
            break
    print("joined", flush=True)
    sys.stdin.readline()
    producer.send(TOPIC, b"k", b"v")
    consumer.close()
    with suppress(TransportUnavailable):
        producer.close()


def _replaced(log: Transport) -> list[Consumer]:
    """Members whose partitions a successor took while they did not poll; none is one now."""
    groups = [f"group-{number}" for number in range(GROUPS)]
    stale = [log.consumer(group, [TOPIC]) for group in groups]
    for member in stale:
        read_until(member, 1)
    fresh = [log.consumer(group, [TOPIC]) for group in groups]
    poll_until(fresh, lambda: all(len(member.positions()) == PARTITIONS for member in fresh))
    for member in fresh:
        member.close()
    return stale


def _compute() -> None:
    """Take the interpreter's lock whenever it is free, for as long as it may be kept."""
    while True:
        sum(range(100))


def main(moment: str, bootstrap: str, prefix: str, side: str) -> None:
    """Print `left` at the end."""
    settings = KafkaSettings(
        (bootstrap,), prefix=prefix, lease_s=LEASE_S, idle_read_s=0.1, timeout_s=TIMEOUT_S[moment]
    )
    with open_transport(settings, Side(side)) as log:
        log.create_topic(TOPIC, PARTITIONS)
        append(log, 40)
        {"replaced": leave_replaced, "frozen": leave_frozen}[moment](log)
    print("left", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
