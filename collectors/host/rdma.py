"""RDMA: port and hardware counters of every InfiniBand or RoCE device, from sysfs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from collectors.interface import SourceUnavailable
from collectors.records.activity import HostTable

_FOLDERS: Final = ("counters", "hw_counters")
_MOST_COUNTERS: Final = 4_096
_WORDS_OF_4_BYTES: Final = ("port_xmit_data", "port_rcv_data")
"""InfiniBand counts these in units of four bytes; they are given as `..._bytes`."""

_SETTINGS: Final = ("lifespan",)

Values = dict[tuple[str, str], int]


class RdmaSource:
    """What each port's counters grew by since the last drain; one row per port."""

    name = "rdma"

    def __init__(self, folder: Path = Path("/sys/class/infiniband")) -> None:
        self._folder = folder
        self._before: tuple[int, Values] | None = None
        self._started = False

    def probe(self) -> str | None:
        if not self._folder.is_dir() or not any(self._folder.iterdir()):
            return f"rdma: no RDMA device in {self._folder}"
        return None

    def start(self) -> None:
        self._before, self._started = None, True

    def drain(self, now_boottime_ns: int) -> Iterable[HostTable]:
        """Yield what grew; a counter that is new, gone, unread or was reset has no value."""
        if not self._started:
            raise SourceUnavailable("rdma: not started")
        try:
            now = dict(islice(self._read(), _MOST_COUNTERS))
        except OSError as error:
            raise SourceUnavailable(f"rdma: {error}") from None
        before, self._before = self._before, (now_boottime_ns, now)
        if before is None:
            return
        begun_ns, then = before
        grown: dict[str, dict[str, int]] = {}
        for (port, counter), value in now.items():
            if (port, counter) in then and value >= then[port, counter]:
                grown.setdefault(port, {})[counter] = value - then[port, counter]
        # Ports of one kind share a table, so that no cell stands for a counter that is not there.
        kinds: dict[tuple[str, ...], list[str]] = {}
        for port, counters in grown.items():
            kinds.setdefault(tuple(counters), []).append(port)
        for columns, ports in kinds.items():
            values = np.array([list(grown[port].values()) for port in ports], np.int64)
            span_ns = now_boottime_ns - begun_ns
            yield HostTable(self.name, tuple(ports), columns, values, begun_ns, span_ns)

    def stop(self) -> None:
        self._before, self._started = None, False

    def _read(self) -> Iterator[tuple[tuple[str, str], int]]:
        for device in sorted(self._folder.iterdir()):
            ports = device / "ports"
            for port in sorted(ports.iterdir()) if ports.is_dir() else ():
                for folder in _FOLDERS:
                    yield from self._counters(f"{device.name}/{port.name}", port / folder)

    def _counters(self, port: str, folder: Path) -> Iterator[tuple[tuple[str, str], int]]:
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if file.name in _SETTINGS:
                continue
            try:
                value = int(file.read_text(encoding="ascii").split()[0])
            except (OSError, ValueError, IndexError):
                continue
            if file.name in _WORDS_OF_4_BYTES:
                yield (port, file.name.replace("_data", "_bytes")), 4 * value
            else:
                yield (port, file.name), value
