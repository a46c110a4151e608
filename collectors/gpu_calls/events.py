"""Turns records of the programs' rings into names and samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from . import layout
from .counts import CallSample, NameEvent
from .table import ProbeTable


def name_events(records: Iterable[bytes], table: ProbeTable) -> Iterator[NameEvent]:
    """Read the names given to handles, one record each."""
    head = layout.NAME_EVENT.itemsize
    for record in records:
        fields = np.frombuffer(record, layout.NAME_EVENT, 1)[0].tolist()
        start_ns, tgid, file, handle, host, row, is_module, length = fields
        text = record[head : head + length].decode("utf-8", errors="replace")
        yield NameEvent(
            layout.process_key(tgid, start_ns),
            file,
            table.rows[row].id,
            handle,
            "" if is_module else text,
            host,
            text if is_module else "",
        )


def call_samples(records: Iterable[bytes], table: ProbeTable) -> Iterator[CallSample]:
    """Read the calls of sampled processes, one record each."""
    for record in records:
        fields = np.frombuffer(record, layout.SAMPLE_EVENT, 1)[0].tolist()
        start_ns, tgid, file, kernel, stream, graph, event, correlation = fields[:8]
        size, boottime_ns, duration_ns, thread, row, stack_id = fields[8:]
        yield CallSample(
            layout.process_key(tgid, start_ns), thread, file, table.rows[row].id, kernel, stream,
            graph, event, correlation, size, stack_id, boottime_ns, duration_ns,
        )  # fmt: skip
