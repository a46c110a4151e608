"""A host's noise is made of bytes that the operating system gave for that very report."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_agent import open_agent as live
from privacy.noise_table import TABLE_SIGMA_1024, LiveSampler, SeededBytes
from tests.agent_world import T0 as FIRST
from tests.agent_world import World, close_window, make_section, started

SIGMAS = np.array([0, 0, 9000, 9000, 700_000, TABLE_SIGMA_1024 + 1])

RESTORED = """
import os, secrets, sys
import numpy as np
from privacy.noise_table import LiveSampler
from privacy.noise_table import SeededSampler
sampler = {"host": lambda: LiveSampler(secrets.token_bytes), "seeded": lambda: SeededSampler(3)}
sampler = sampler[sys.argv[1]]()
sigmas = np.full(40, 9000)
sampler.sample(1, sigmas)
for _ in range(2):
    child = os.fork()
    if not child:
        print(os.getpid(), sampler.sample(1, sigmas).tolist(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Two copies of a process's memory, told the same process id: what two restores of one snapshot
are to everything that lives in the process, and to every check for a fork."""


@pytest.fixture(scope="module")
def one_process_id(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that gives every process one id."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, as make tools installs it")
    folder = tmp_path_factory.mktemp("pid")
    (folder / "pid.c").write_text("int getpid(void) { return 4242; }\n")
    library = folder / "pid.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "pid.c"], check=True)
    return library


@pytest.mark.parametrize(("sampler", "different"), [("host", 2), ("seeded", 1)])
def test_restored_copies_of_a_process_draw_different_noise(
    one_process_id: Path, sampler: str, different: int
) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(one_process_id)}
    command = [sys.executable, "-c", RESTORED, sampler]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    told = done.stdout.splitlines()
    assert [line.startswith("4242 ") for line in told] == [True, True]
    assert len(set(told)) == different


def test_noise_is_a_function_of_the_bytes_of_its_own_call() -> None:
    """The same bytes give the same noise, whatever was drawn before: nothing is kept."""
    fresh, used = LiveSampler(SeededBytes(1)), LiveSampler(SeededBytes(2))
    used.sample(3, SIGMAS)
    used._random_bytes = SeededBytes(1)
    assert (fresh.sample(2, SIGMAS) == used.sample(2, SIGMAS)).all()


def test_each_report_asks_the_operating_system_for_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 bits for each draw, asked for after the window closed."""
    asked: list[int] = []

    def counted(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    world = World(1)
    sections = (make_section(600_000, length=32),)
    task = world.task(domain="fleet", sections=sections)
    taking_part = world.participant(sampler=LiveSampler(counted), rules=world.rules(domain="live"))
    runtime, (tid,) = started(world, [task], participant=taking_part)
    for number in range(3):
        asked.clear()
        close_window(runtime, world, task, tid, FIRST + 60 * number)
        assert sum(asked) >= 8 * 32
    assert len(runtime.committed) == 3


def test_agent_draws_by_the_operating_systems_generator() -> None:
    sampler = live.noise_sampler()
    assert isinstance(sampler, LiveSampler)
    assert sampler._random_bytes is secrets.token_bytes
