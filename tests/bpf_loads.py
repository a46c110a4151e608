"""Known loads, each in a process of its own: says `ready`, waits for a line, works, says `done`.

Run as `python bpf_loads.py NAME ARGUMENT`; it imports nothing that is slow to load.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
MADV_NOHUGEPAGE = 15
SIOCSIFFLAGS = 0x8914
LOSSY = "127.0.0.7"
"""A peer of `lose` alone: other tests' packets on the loopback are sent again too."""


def spin(seconds: str) -> None:
    os.sched_setaffinity(0, {0})
    until = time.process_time() + float(seconds)
    while time.process_time() < until:
        pass


def touch(pages: str) -> None:
    size = int(pages) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(MADV_NOHUGEPAGE)
    for offset in range(0, size, mmap.PAGESIZE):
        memory[offset] = 1
    memory.close()


def tcp(size: str) -> None:
    """Send bytes to oneself over loopback, in pieces smaller than a socket's buffer."""
    near, far = _pair()
    left = int(size)
    while left:
        piece = min(left, 16_384)
        near.sendall(bytes(piece))
        left -= piece
        while piece:
            far.recv(piece, socket.MSG_PEEK)
            piece -= len(far.recv(piece))
    acked, received = _tcp_info_bytes(near)[0], _tcp_info_bytes(far)[1]
    print("tcp_info", acked, received, flush=True)


def ask(times: str) -> None:
    """Ask another process, which answers 10 ms later, and wait for each answer."""
    near, far = _pair()
    if os.fork() == 0:
        near.close()  # its own copy would keep it waiting for ever
        while far.recv(1):
            time.sleep(0.01)
            far.sendall(b"a")
        os._exit(0)
    for _ in range(int(times)):
        near.sendall(b"q")
        near.recv(1)
    near.close()


def overflow(packets: str) -> None:
    """Send packets to a socket whose buffer is full after a few; nobody reads them."""
    _loopback_up()
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sink.bind(("127.0.0.1", 0))
    for _ in range(int(packets)):
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(1_000), sink.getsockname())
    names, values = [
        line.split()
        for line in Path("/proc/net/snmp").read_text(encoding="utf-8").splitlines()
        if "Udp:" in line
    ]
    print("refused", values[names.index("RcvbufErrors")], flush=True)


def lose(size: str) -> None:
    """Send bytes that the receiver's socket filter drops, until some were sent again.

    Then let them pass: the window grows, and packets of several segments are sent again.
    """
    _loopback_up()
    near, far = _pair(segment_bytes=1_000, host=LOSSY)
    refuse = array.array("B", struct.pack("HBBI", 6, 0, 0, 0))  # BPF_RET | 0 bytes
    address, _ = refuse.buffer_info()
    far.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", 1, address))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    near.setblocking(False)
    near.send(bytes(int(size)))
    time.sleep(0.5)
    far.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    far.settimeout(5)
    left = int(size)
    while left:
        left -= len(far.recv(left))


def write(mebibytes: str) -> None:
    path = Path(f"load-{os.getpid()}")
    buffer = mmap.mmap(-1, 1 << 20)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        for _ in range(int(mebibytes)):
            os.write(fd, buffer)
        os.fsync(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        for _ in range(int(mebibytes)):
            os.readv(fd, [buffer])
    finally:
        os.close(fd)
        path.unlink()


def cache(mebibytes: str) -> None:
    """Fill the page cache with a sparse file: more than a memory limit holds."""
    path = Path(f"load-{os.getpid()}")
    with path.open("wb") as file:
        file.truncate(int(mebibytes) << 20)
    try:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # one page per charge
            while file.read(mmap.PAGESIZE):
                pass
    finally:
        path.unlink()


def _pair(segment_bytes: int = 0, host: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server((host, 0))
    near = socket.socket()
    if segment_bytes:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
    near.connect(listener.getsockname())
    far, _ = listener.accept()
    return near, far


def _tcp_info_bytes(sock: socket.socket) -> tuple[int, int]:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    acked, received = struct.unpack_from("QQ", info, 120)
    return acked, received


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", 1))


LOADS = {f.__name__: f for f in (spin, touch, tcp, ask, overflow, lose, write, cache)}

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    LOADS[sys.argv[1]](sys.argv[2])
    print("done", flush=True)
    sys.stdin.readline()
