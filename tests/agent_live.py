"""A live agent's surroundings on disk: key, configuration, a log with task, roster and keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors.gpu_calls.gpu_probes import ProbesSection
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.config import (
    AgentConfig,
    HostSection,
    SourcesSection,
    TrustSection,
)
from edge_agent.open_agent import open_agent, this_machine
from edge_agent.protocol.task_check import Bounds
from tests.agent_world import T0, NoNoise, World
from transport.embedded.embedded import EmbeddedLog
from transport.factory import TransportTable
from transport.files.keyfiles import HostKey, write_host_key
from transport.interface import Record, create_topics
from wire.envelope import Kind, wrap
from wire.task import Task
from wire.topics import (
    EPOCHS,
    KEYS,
    REPORTS,
    ROSTERS,
    TASKS,
    announcement_key,
    roster_key,
    task_key,
)


class SteppedClock:
    """A clock that moves only when the agent sleeps, so that hours pass in no time."""

    def __init__(self, start_s: int) -> None:
        self.now_ms = start_s * 1000

    def unix_ms(self) -> int:
        return self.now_ms

    def boottime_ns(self) -> int:
        return self.now_ms * 1_000_000

    def sleep_ms(self, span_ms: int) -> None:
        self.now_ms += span_ms


@dataclass
class Surroundings:
    folder: Path
    world: World
    config: AgentConfig
    task: Task

    def log(self) -> EmbeddedLog:
        return EmbeddedLog(self.folder / "log")

    def publish(self, topic: str, key: bytes, kind: Kind, core: bytes) -> None:
        with self.log() as log:
            producer = log.producer()
            producer.send(topic, key, wrap(kind, core))
            producer.close()

    def records(self, *topics: str) -> list[Record]:
        with self.log() as log:
            consumer = log.consumer(os.urandom(4).hex(), topics or (EPOCHS, REPORTS))
            found: list[Record] = []
            while page := consumer.poll(1000, 0.0):
                found += page
            consumer.close()
        return sorted(found, key=lambda r: (r.topic, r.partition, r.offset))

    def agent(
        self, clock: SteppedClock, fault_point: Callable[[str], None] = lambda _point: None
    ) -> AgentRuntime:
        runtime, _ = open_agent(
            self.config, domain="demo", sampler=NoNoise(), clock=clock, fault_point=fault_point
        )
        return runtime

    def run(
        self,
        start_s: int,
        end_s: int,
        fault_point: Callable[[str], None] = lambda _point: None,
    ) -> AgentRuntime:
        """Run the agent over a span of its own clock, then stop it in order."""
        clock = SteppedClock(start_s)
        runtime = self.agent(clock, fault_point)
        run_until(runtime, clock, end_s)
        runtime.close()
        return runtime


def run_until(runtime: AgentRuntime, clock: SteppedClock, end_s: int) -> None:
    runtime.start()
    while clock.now_ms < end_s * 1000:
        runtime.step()
        clock.sleep_ms(runtime.pause_ms())


def surroundings(
    folder: Path,
    *,
    window_s: int = 4,
    windows: int = 1000,
    world: World | None = None,
    task: Task | None = None,
    **sections: Any,
) -> Surroundings:
    """Make everything that a demo agent finds when it starts at T0, the first host of a world."""
    world = world or World(1)
    given: dict[str, Any] = {
        "sources": SourcesSection(host=False, faults=False, probes=ProbesSection(enabled=False)),
        "bounds": Bounds(n_min_at_least=80),
    } | sections
    config = AgentConfig(
        HostSection(folder / "keys" / "host.key", folder / "state", ("H100", "H100")),
        TransportTable(folder / "log"),
        TrustSection(frozenset({world.leader.pk}), frozenset({world.helper.pk})),
        **given,
    )
    config.host.key_file.parent.mkdir()
    key = HostKey(world.signing_keys[0], this_machine(config))
    write_host_key(config.host.key_file, key)
    task = task or demo_task(world, window_s=window_s, windows=windows)
    made = Surroundings(folder, world, config, task)
    with made.log() as log:
        create_topics(log)
    announce(made, [task])
    return made


def demo_task(
    world: World, *, window_s: int, windows: int, series: str = "demo", weight: int = 600_000
) -> Task:
    weights = {"kernel_mix": weight // 6 * 5, "host_cpu": weight // 6}
    return world.catalogue_task(
        weights, window_s=window_s, windows=windows, series=series, lateness_s=2, n_max=100,
        n_min=80, expiry=T0 + 10 * windows * window_s + 86_400,
    )  # fmt: skip


def announce(made: Surroundings, tasks: Sequence[Task], roster_version: int = 1) -> None:
    world = made.world
    for key in world.keys(T0, 30 * 86_400):
        made.publish(
            KEYS, announcement_key(key.party_pk, key.key_id), Kind.KEY_ANNOUNCEMENT, key.encode()
        )
    weights = {t.series: sum(s.weight_millionths for s in t.sections) for t in tasks}
    crowd = max((t.n_min for t in tasks), default=0)
    made.publish(
        ROSTERS,
        roster_key(),
        Kind.ROSTER,
        world.roster(weights, version=roster_version, crowd=crowd),
    )
    for task in tasks:
        made.publish(TASKS, task_key(task.series), Kind.TASK, world.sign_task(task))


def killing(point: str, hit: int = 1) -> Callable[[str], None]:
    """Give a fault point that kills this process the moment it is reached for the hit-th time."""
    left = hit

    def reached(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
