"""The PLD check in a process of its own gives the answers of this one's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_agent.protocol.task_check import GateProcess
from privacy.accountant import SectionNoise, gate
from privacy.errors import ParameterError

pytestmark = pytest.mark.slow

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
    assert os.getpgid(process._child.pid) != os.getpgrp(), "Ctrl-C would end it with a traceback"
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

    monkeypatch.setattr("edge_agent.protocol.task_check._begin", silent)
    with pytest.raises(ParameterError, match="an answer of the accountant"):
        GateProcess()([QUIET], 2_000_000, 1_000)


@pytest.mark.parametrize(
    "answer",
    [
        "a warning of a library",
        '["epsilon", NaN]',
        '["epsilon", -1.0]',
        '["epsilon", 3.0]',
        '["epsilon"]',
        '["epsilon", "1.0"]',
        '["epsilon", 1.0, 2.0]',
        '["refused"]',
        '{"epsilon": 1.0}',
        "1.0",
        "[" * 100_000,
    ],
)
def test_gate_process_with_another_answer_refuses(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Whatever is no epsilon within the bound is a refusal, and never the end of the agent."""
    _answered_by(monkeypatch, f"import sys; sys.stdin.readline(); print({answer!r})")
    with pytest.raises(ParameterError):
        GateProcess()([QUIET], 2_000_000, 1_000)


@pytest.mark.parametrize(
    "code",
    [
        "import sys, time; sys.stdin.readline(); print('[', end='', flush=True); time.sleep(99)",
        "import time; time.sleep(99)",
    ],
)
def test_gate_process_whose_child_hangs_refuses(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """In the middle of its answer, or before it took a question longer than a pipe holds."""
    monkeypatch.setattr("edge_agent.protocol.task_check._ANSWER_S", 0.3)
    _answered_by(monkeypatch, code)
    with pytest.raises(ParameterError, match="an answer of the accountant"):
        GateProcess()([QUIET] * 2_000, 2_000_000, 1_000)


def test_gate_process_answers_are_apart_from_what_libraries_print() -> None:
    code = (
        "import edge_agent.protocol.task_check as process\n"
        "def noisy(*_): print('a library prints'); return 1.0\n"
        "process.gate = noisy\n"
        "process.serve()\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], input="[[], 2000000, 1000]\n",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert child.stdout == '["epsilon", 1.0]\n'
    assert "a library prints" in child.stderr


def _answered_by(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    monkeypatch.setattr("edge_agent.protocol.task_check._begin", begin)
