"""What the doctor says of GPU calls: one line and one thing to do for each need."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.service.doctor import examine, source_advice
from edge_agent.service.doctor_collectors import kernel, probe_checks
from transport.process.doctor_findings import CheckVerdict, Finding

BPF, PERFMON, PTRACE, DAC = 1 << 39, 1 << 38, 1 << 19, 1 << 2


def verdicts(effective: int) -> dict[str, Finding]:
    return {one.name: one for one in examine(probe_checks(effective=effective))}


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        (BPF | PERFMON | PTRACE | DAC, set()),
        (BPF | PERFMON | PTRACE, {"batch jobs"}),
        (BPF | PERFMON | DAC, {"batch jobs", "containers"}),
        (PERFMON | PTRACE | DAC, {"counting"}),
        (0, {"counting", "containers", "batch jobs"}),
    ],
)
def test_doctor_says_what_is_lost_without_each_capability(effective: int, absent: set[str]) -> None:
    found = verdicts(effective)
    named = {"counting", "containers", "batch jobs"}
    assert {name for name in named if found[name].verdict is CheckVerdict.ABSENT} == absent
    assert all(found[name].do for name in absent)
    assert not any(found[name].do for name in named - absent)


def test_doctor_names_the_capability_that_is_missing() -> None:
    counting = verdicts(PERFMON)["counting"]
    assert counting.found == "without CAP_BPF: no GPU call is seen"
    assert "CAP_BPF" in (counting.do or "")
    assert "CAP_PERFMON" not in (counting.do or "")


def test_doctor_says_what_an_older_kernel_needs() -> None:
    old = kernel("6.1.0-44-amd64")
    assert old.verdict is CheckVerdict.ABSENT
    assert old.found.startswith("expected Linux 6.6 or later (uprobe_multi), this is 6.1.0-44")
    assert "6.6" in (old.do or "")
    assert source_advice("probes", f"GPU calls: {old.found}") == old.do


def test_doctor_notices_a_pid_namespace(tmp_path: Path) -> None:
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.touch()
    found = {one.name: one for one in examine(probe_checks(tmp_path, 0))}["process ids"]
    assert found.verdict is CheckVerdict.ABSENT
    assert "hostPID" in (found.do or "")
