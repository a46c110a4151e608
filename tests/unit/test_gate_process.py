"""The PLD check in a process of its own gives the answers of this one's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from edge_agent.gate_process import GateProcess
from privacy.accountant import SectionNoise, gate
from privacy.errors import ParameterError

QUIET = SectionNoise(delta_sq=1_000, sigma_1024=1 << 20, windows=10, coordinates=4, honest_hosts=9)
LOUD = SectionNoise(delta_sq=1_000, sigma_1024=10_240, windows=10, coordinates=4, honest_hosts=9)


@pytest.fixture(scope="module")
def process() -> Iterator[GateProcess]:
    made = GateProcess()
    yield made
    made.close()


def test_gate_process_answers_as_the_gate_does_also_after_its_end(process: GateProcess) -> None:
    assert process([QUIET], 2_000_000, 1_000) == gate([QUIET], 2_000_000, 1_000)
    assert process._child is not None
    process._child.kill()  # as it ends by itself when nobody asks
    process._child.wait()
    with pytest.raises(ParameterError) as there:
        process([LOUD], 2_000_000, 1_000)
    with pytest.raises(ParameterError) as here:
        gate([LOUD], 2_000_000, 1_000)
    assert str(there.value) == str(here.value)


def test_gate_process_without_an_answer_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> subprocess.Popen[str]:
        return subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr("edge_agent.gate_process._begin", silent)
    with pytest.raises(ParameterError, match="an answer of the accountant"):
        GateProcess()([QUIET], 2_000_000, 1_000)
