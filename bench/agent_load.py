"""Two workloads whose time tells what an agent beside them costs; run as a script of its own.

`python agent_load.py network TRIPS BYTES`: a client and a server on one CPU exchange messages over
loopback and hash BYTES a trip, as a service does that talks and computes: two switches a trip.
`python agent_load.py pingpong TRIPS`: two processes pass a byte through pipes and do nothing else.
Prints the nanoseconds of wall time, and the switches.
"""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import sys
import time

MESSAGE = 1_024


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    kind, trips = sys.argv[1], int(sys.argv[2])
    run = _pingpong if kind == "pingpong" else _network
    begun = time.perf_counter_ns()
    run(trips, *map(int, sys.argv[3:]))
    wall_ns = time.perf_counter_ns() - begun
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(wall_ns, sum(one.ru_nvcsw + one.ru_nivcsw for one in used))


def _pingpong(trips: int) -> None:
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    source, sink = (there[0], back[1]) if child == 0 else (back[0], there[1])
    for _ in range(trips):
        if child:
            os.write(sink, b".")
        os.read(source, 1)
        if not child:
            os.write(sink, b".")
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _network(trips: int, size: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        peer = socket.create_connection(listener.getsockname())
    else:
        peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    work, message = bytes(size // 2), bytes(MESSAGE)
    for _ in range(trips):
        if child:
            peer.sendall(message)
        left = MESSAGE
        while left:
            left -= len(peer.recv(left))
        hashlib.sha256(work).digest()
        if not child:
            peer.sendall(message)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
