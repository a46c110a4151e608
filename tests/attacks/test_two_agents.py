"""Two agents of two fleets on one machine, each with a ledger of its own, would spend two budgets:
the second is refused, as long as the first one's process lives.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_agent.config import AgentConfig
from tests.agent_live import surroundings
from tests.agent_world import T0, World
from tests.netns_kit import ip_call

pytestmark = pytest.mark.root

# What `agent run` does to a live agent, by the test's own clock, until its input ends.
_LIVE = f"""
import pickle, sys
from edge_agent.open_agent import open_agent
from tests.agent_live import SteppedClock
runtime, _ = open_agent(pickle.load(sys.stdin.buffer), clock=SteppedClock({T0}))
runtime.start()
try:
    runtime.step()
except Exception as refusal:
    print(getattr(refusal, "code", "failed"), refusal, flush=True)
else:
    print("serves", len(runtime.tasks), runtime.tally.refused, flush=True)
    sys.stdin.buffer.read()
runtime.close()
"""


@dataclass
class Machine:
    """Agents of this machine share a network namespace, as those of containers on it do."""

    namespace: str

    @contextmanager
    def running(self, config: AgentConfig) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        """An agent in a process of its own, and what came of its first task."""
        child = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, sys.executable, "-c", _LIVE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(pickle.dumps(config))
        child.stdin.flush()
        lines = (line.decode() for line in child.stdout)
        told = next((one for one in lines if one.startswith(("serves", "machine"))), "ended")
        try:
            yield child, told
        finally:
            child.communicate(timeout=60)


@pytest.fixture
def machine() -> Iterator[Machine]:
    name = f"plst{os.urandom(3).hex()}"
    ip_call("netns", "add", name)
    yield Machine(name)
    ip_call("netns", "del", name)


def fleets_agent(folder: Path) -> AgentConfig:
    """A live agent of a fleet of its own, with log, task and roster."""
    folder.mkdir()
    world = World(1)
    task = world.catalogue_task({"host_cpu": 500_000}, domain="fleet", n_max=1000, n_min=800)
    return surroundings(folder, world=world, task=task).config


def test_second_agent_of_a_machine_spends_nothing(machine: Machine, tmp_path: Path) -> None:
    """Whose budget it is, is told; a process that is killed leaves nothing that blocks."""
    one, two = (fleets_agent(tmp_path / name) for name in ("one", "two"))
    with ExitStack() as ending:
        first, told = ending.enter_context(machine.running(one))
        assert told.startswith("serves 1"), told
        _, told = ending.enter_context(machine.running(two))
        assert told.startswith("machine_taken"), told
        assert f"is spent by the agent of {one.host.state_dir}, pid {first.pid}, of " in told
        first.kill()
        first.wait()
        _, told = ending.enter_context(machine.running(two))
        assert told.startswith("serves 1"), told
