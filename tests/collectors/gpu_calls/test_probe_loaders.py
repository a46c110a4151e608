"""Which loader serves, and the whole source through BCC."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.gpu_calls import loaders
from collectors.gpu_calls.loaders import Loader
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import GovernorState, GpuCalls
from tests.probe_source_kit import own_caller, watching
from tests.probes_kit import Stubs, begin

LAUNCHES_ALONE = """
name = "cudart"
files = ["libcudart.so*"]

[[row]]
id = "launch"
kind = "launch"
symbols = ["cudaLaunchKernel"]
arguments = { object = 0 }
"""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without uprobe_multi and without BCC."""
    for loader, module in loaders._MODULES.items():
        monkeypatch.setattr(module, "unavailable", lambda loader=loader: f"no {loader} here")


def test_loaders_say_why_none_of_them_serves(refusing: None) -> None:
    assert loaders.unavailable() == "libbpf: no libbpf here; bcc: no bcc here"
    assert loaders.unavailable(Loader.BCC) == "bcc: no bcc here"
    with pytest.raises(SourceUnavailable, match="no libbpf here"):
        loaders.choose(ProbeTable(()))


@pytest.mark.root
@pytest.mark.kernel
def test_loaders_prefer_libbpf_and_never_switch_bccs_places_in_turns() -> None:
    table = ProbeTable.load()
    for asked, wanted in ((Loader.AUTO, Loader.LIBBPF), (Loader.BCC, Loader.BCC)):
        chosen = loaders.choose(table, asked)
        assert chosen.programs._programs is None
        assert (chosen.loader, bool(chosen.turns)) == (wanted, wanted is Loader.LIBBPF)


@pytest.mark.root
@pytest.mark.kernel
def test_source_through_bcc_counts_a_process_exactly(
    stubs: Stubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "launches.toml"
    rows.write_text(LAUNCHES_ALONE)
    # Every place of the shipped tables would take a tenth of a second to detach.
    monkeypatch.setattr("collectors.gpu_calls.gpu_probes.shipped_tables", lambda: (rows,))
    program = own_caller(stubs, tmp_path, "libcudart")
    with watching(loader="bcc") as watched:
        with watched.waiting(program, "threads", 3, 503) as child:
            begin(child)
            watched.drain()
        # Of this process alone: other tests may run beside this one, with callers of their own.
        calls = [one for one in watched.of(GpuCalls) if isinstance(one, GpuCalls)]
        own = [row for one in calls for row in one.kernels if row.process.pid == child.pid]
        assert sum(row.launches.seen for row in own) == 3 * 503
        assert watched.source.running.loader == "bcc"
        states = [one for one in watched.of(GovernorState) if isinstance(one, GovernorState)]
        assert all(one.loader == "bcc" and not one.in_turns for one in states)
