"""The library beside the real driver 535 and CUPTI: whatever they answer, the program runs on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.gpu_time.segment import RecordingState
from scripts.gpu_time.listening import OFF, ON, Listening, listening
from tests.fake_library import built_program
from tests.real_libraries import CUPTI, DRIVER, cupti_folder, unpacked
from tests.wait_kit import until

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.usefixtures("no_node_is_left")]

PROGRAM = Path(__file__).parent / "beside_driver.c"
CALLS = 40
ENDS_WITH = 7


@pytest.fixture
def agent() -> Iterator[Listening]:
    with listening() as found:
        found.plan(ON)
        yield found


class Ran:
    """What a program on the real driver said, and how it ended; it makes calls one by one."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [built_program(PROGRAM), unpacked(DRIVER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )  # fmt: skip
        self.pid = self._process.pid
        self.said = [self._line()]

    def call(self) -> None:
        """Have it call the driver."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.said.append(self._line())

    def end(self) -> tuple[list[str], int, str]:
        """Let it end; give its output, exit code and errors."""
        rest, errors = self._process.communicate(timeout=30)
        return [*self.said, *rest.splitlines()], self._process.returncode, errors

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@pytest.fixture
def alone() -> list[str]:
    """What the program says without the library."""
    program = Ran()
    for _ in range(CALLS):
        program.call()
    said, code, errors = program.end()
    assert (code, errors) == (ENDS_WITH, "")
    assert said[0] == "init 100"
    return said


def beside(agent: Listening, cuda: str) -> dict[str, str]:
    (library,) = (cupti_folder(cuda) / "lib").glob("libcupti.so.*")
    return agent.environment | {"POINTILLIST_CUPTI": str(library)}


@pytest.mark.parametrize("cuda", [cuda for cuda in CUPTI if cuda != "12.2"])
def test_a_program_goes_on_while_the_real_cupti_refuses_to_record(
    agent: Listening, alone: list[str], cuda: str
) -> None:
    """It is asked to, and then no longer; without a device CUPTI takes no subscriber."""
    program = Ran(**beside(agent, cuda))
    agent.wait(program.pid, RecordingState.REFUSED)
    for call in range(CALLS):
        program.call()
        if call == CALLS // 2:
            agent.plan(OFF)
            time.sleep(0.1)
    header = agent.look(program.pid).header
    assert header["error"] != 0
    assert (header["windows"], header["records"]) == (0, 0)
    assert program.end() == (alone, ENDS_WITH, "")


def test_a_program_goes_on_beside_a_cupti_that_cannot_leave(
    agent: Listening, alone: list[str]
) -> None:
    """CUPTI 12.2 fits this driver, and is left alone: nothing reports to the agent."""
    program = Ran(**beside(agent, "12.2"))
    for _ in range(CALLS):
        program.call()
    time.sleep(0.5)
    assert agent._reporters == {}
    said, code, errors = program.end()
    assert (said, code) == (alone, ENDS_WITH)
    assert "expected CUPTI of CUDA 12.6 or later" in errors


def test_a_program_ends_while_the_real_cupti_is_being_asked(
    agent: Listening, alone: list[str]
) -> None:
    """Ten times, at moments of its own, with the agent's first lease on its way."""
    environment = beside(agent, "13")
    for _ in range(10):
        assert Ran(**environment).end() == (alone[:1], ENDS_WITH, "")
    program = Ran(**environment)
    until(lambda: program.pid in agent._reporters)
    assert program.end() == (alone[:1], ENDS_WITH, "")
