"""Names of kernels come from any process: a terminal shows them and does nothing else."""

from __future__ import annotations

from collectors.records.activity import KernelActivity
from edge_agent.local.local_rows import Flattener, RecordRow
from wire.catalogue import Catalogue


def _kernel(name: str) -> KernelActivity:
    return KernelActivity(0, name, "other", "other", 1, 1, (), 1_000_000, 0, 1)


def test_kernel_names_reach_board_and_history_without_control_characters() -> None:
    hostile, plain = _kernel("a\x1b[2J\x9bb\udcff" + "c" * 500), _kernel("void gemm<float>()")
    rows = list(Flattener(Catalogue.load()).rows("probes", [hostile, plain]))
    records = [row.record for row in rows if isinstance(row, RecordRow)]
    names = [record.kernel for record in records if isinstance(record, KernelActivity)]
    assert names == ["a\\x1b[2J\\x9bb\\udcff" + "c" * 500, "void gemm<float>()"]
