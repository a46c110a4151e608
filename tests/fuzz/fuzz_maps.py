"""What /proc and the kernel's ring say of a process: its maps, its state, its groups, its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from collectors.binaries.perf_ring import BrokenRing, parse_records
from collectors.binaries.proc_maps import MOST_MODULES, Modules, parse_maps, parse_stat
from collectors.devices.devices_source import container_of

_WAYS: Final = 4


def fuzz(data: bytes) -> None:
    if not data:
        return
    content, way = data[1:], data[0] % _WAYS
    if way == 0:
        _maps(content)
    elif way == 1:
        with suppress(ValueError):  # of a start that is no number: the kernel writes one
            parse_stat(content)
    elif way == 2:
        container_of(content.decode("utf-8", "replace"))
    else:
        with suppress(BrokenRing):
            list(parse_records(content))


def _maps(content: bytes) -> None:
    modules = Modules(parse_maps(content))
    assert len(modules) <= MOST_MODULES
    held = list(modules)
    assert all(module.start < module.end for module in held), "a module without room"
    assert all(before.end <= after.start for before, after in pairwise(held)), (
        "modules over each other"
    )
    for module in held[:8]:
        assert modules.find(module.start) is not None
    modules.files()


def seeds() -> Iterator[bytes]:
    yield b"\0" + Path("/proc/self/maps").read_bytes()[:2000]
    yield (
        b"\0"
        b"7f00-7f10 r-xp 00000000 08:01 42 /usr/lib/libcuda.so.1\n"
        b"7f08-7f20 r-xp 00001000 08:01 43 /tmp/a b\r (deleted)\n"
        b"7f08-7f20 r-xp zz 08:01 43 /tmp/c\nffff-1 r-xp 0 0:0 1 [vdso]\n"
    )
    yield b"\x01" + Path("/proc/self/stat").read_bytes()
    yield b"\x01" + b"7 (a) R b) S 1 " + b"1 " * 17 + b"12345 0"
    yield b"\x02" + b"0::/kubepods/besteffort/pod1/" + b"ab" * 32
    yield b"\x02" + b"3:cpu:/lxc/name/init.scope"
    task = (7).to_bytes(4, "little") + (6).to_bytes(4, "little") + bytes(16)
    fork = (7).to_bytes(4, "little") + bytes(2) + (8 + 24).to_bytes(2, "little") + task
    mapped = (10).to_bytes(4, "little") + bytes(2) + (8 + 80).to_bytes(2, "little")
    yield b"\x03" + fork + mapped + bytes(range(80))
