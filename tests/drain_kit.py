"""Drains of the GPU programs as JSON: recorded once from real processes, played back anywhere.

`python -m tests.drain_kit` (as root) records `edge_agent/local/probe_drains.json` anew:
one second of stub programs that launch, copy, wait, allocate, fail and speak to each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from collectors.gpu_calls.activity_records import Named
from collectors.gpu_calls.call_records import CallRecords
from collectors.gpu_calls.governor import Period
from collectors.gpu_calls.periods import Collected
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.readout import (
    CallRow,
    CollectiveRow,
    CopyRow,
    ErrorRow,
    LaunchRow,
    MemoryRow,
    ProbeDrain,
)
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Direction, GpuCalls, MemoryState, ProbeGroup, ProcessLabels

RECORDED: Final = Path(__file__).parent / "edge_agent" / "local" / "probe_drains.json"
_ROWS: Final[Mapping[str, Any]] = {
    "launches": LaunchRow,
    "calls": CallRow,
    "errors": ErrorRow,
    "copies": CopyRow,
    "memory": MemoryRow,
    "collectives": CollectiveRow,
}
_NAMES: Final = {
    0x10000: Named("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16>(T1::Params)", "gemm"),
    0x10100: Named("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits>(Params)", "attention"),
}
_OTHER: Final = Named("vectorized_elementwise_kernel", "elementwise")


def dump(drain: ProbeDrain) -> dict[str, Any]:
    found: dict[str, Any] = {"begun_ns": drain.begun_ns, "span_ns": drain.span_ns}
    for name, kind in _ROWS.items():
        fields = getattr(kind, "_fields", None) or kind.__slots__
        found[name] = [[getattr(row, field) for field in fields] for row in getattr(drain, name)]
    return found


def load(found: Mapping[str, Any]) -> ProbeDrain:
    rows: dict[str, Any] = {name: tuple(_row(name, row) for row in found[name]) for name in _ROWS}
    return ProbeDrain(found["begun_ns"], found["span_ns"], **rows)


def played(drains: list[ProbeDrain], share: float = 1.0) -> Iterator[GpuCalls]:
    """Make local records of drains, as the source does; `share` below 1: as if in turns."""
    begin, end = drains[0].begun_ns, drains[-1].begun_ns + drains[-1].span_ns
    groups = frozenset(ProbeGroup)
    period = Period(begin, end, groups, frozenset(), (), (), 1.0, 0.002)
    shares = dict.fromkeys(ProbeGroup, share)
    names = {(row.process, row.kernel): _NAMES.get(row.kernel, _OTHER)
             for drain in drains for row in drain.launches}  # fmt: skip
    records = CallRecords(ProbeTable.load(), _identity, lambda _process: False)
    yield from records.of(
        [Collected(drain, period, shares, None, groups) for drain in drains], names
    )


def recorded() -> list[ProbeDrain]:
    return [load(one) for one in json.loads(RECORDED.read_text())]


def _identity(process: ProcessKey) -> ProcessLabels:
    return ProcessLabels(f"python3-{process.pid % 10}", application="llm_training")


def _row(name: str, values: list[Any]) -> Any:
    values[0] = ProcessKey(*values[0])
    if name == "copies":
        values[2], values[-1] = Direction(values[2]), tuple(map(tuple, values[-1]))
    if name == "memory":
        values[2] = MemoryState(*values[2])
    return _ROWS[name](*values)


def _record() -> None:
    from tests.probes_kit import Stubs, probing, staying

    with TemporaryDirectory() as folder, probing() as probed, ExitStack() as running:
        stubs = Stubs.build(Path(folder))
        for name in ("libcudart", "libnccl"):
            probed.attach(stubs.library(name))
        caller = stubs.caller("libcudart", "libnccl")
        for words in (("threads", 2, 5003), ("copies",), ("waits",), ("many", 7, 31),
                      ("collectives",), ("failures",)):  # fmt: skip
            running.enter_context(staying(caller, *words))
        RECORDED.write_text(json.dumps([dump(probed.drain())]) + "\n")


if __name__ == "__main__":
    _record()
