"""Programs that may do little, or were started without what is usual: they run on."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.gpu_time.segment import SEGMENT_BYTES, RecordingState
from scripts.gpu_time.listening import ON, Listening, listening
from tests.gpu_time_kit import program

pytestmark = pytest.mark.slow

NOT_YET = "not injected"
_BLOCK = 512


@pytest.fixture
def agent() -> Iterator[Listening]:
    with listening() as found:
        found.plan(ON)
        yield found


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (resource.RLIMIT_FSIZE, SEGMENT_BYTES - 1), (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 4),
    ],
    ids=["smaller files", "no files", "one more descriptor"],
)  # fmt: skip
def test_a_program_that_may_not_have_what_the_library_needs_runs_on_without(
    agent: Listening, limit: int, most: int
) -> None:
    """Making a file larger than may be is told by a signal, which ends a program."""
    with program(agent.path, NOT_YET) as one:
        resource.prlimit(one.pid, limit, (most, most))
        assert one.ask("inject") == "injected"
        assert one.ask("kernels gemm 5 0 10") == "done 5"
        time.sleep(0.7)  # it tries to connect twice a second
        assert (one.ask("kernels gemm 5 0 10"), one.end()) == ("done 5", 0)
        assert set(agent._reporters) == set()


def test_descriptors_of_the_library_are_none_that_programs_write_to_blindly(
    agent: Listening,
) -> None:
    """A program that was started without a standard error writes there all the same."""
    with program(agent.path, NOT_YET) as one:
        assert one.ask("close 2") == "closed 0"
        assert one.ask("inject") == "injected"
        agent.wait(one.pid, RecordingState.ON)
        assert "2" not in os.listdir(f"/proc/{one.pid}/fd")  # noqa: PTH208
        assert one.end() == 0


def test_memory_is_taken_at_the_start(agent: Listening) -> None:
    """What the system refuses later would end the program."""
    with program(agent.path) as one:
        agent.wait(one.pid)
        (memory,) = (
            path for path in Path(f"/proc/{one.pid}/fd").iterdir()
            if "pointillist-gpu-time" in str(path.readlink())
        )  # fmt: skip
        assert memory.stat().st_blocks * _BLOCK >= SEGMENT_BYTES
