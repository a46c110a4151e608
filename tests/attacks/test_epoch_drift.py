"""Epoch headers travel in clear: when a host's epochs begin says nothing of its load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agent_live import SteppedClock, run_until, surroundings
from tests.agent_world import T0
from wire.envelope import unwrap
from wire.epoch import Epoch
from wire.topics import EPOCHS

HOURS = 2
PERIOD_S = 3600


class SlowSource:
    """A busy host: each read takes so long, every 97th three times that."""

    name = "slow"

    def __init__(self, clock: SteppedClock, read_ms: int) -> None:
        self._clock, self._read_ms, self._reads = clock, read_ms, 0

    def probe(self) -> None:
        """There is nothing to find."""

    def start(self) -> None:
        """Nothing is begun."""

    def stop(self) -> None:
        """Nothing is to end."""

    def drain(self, _now: Any) -> list[Any]:
        self._reads += 1
        self._clock.sleep_ms(self._read_ms * (1 if self._reads % 97 else 3))
        return []


def test_epochs_of_a_busy_host_begin_whole_periods_apart(tmp_path: Path) -> None:
    made = surroundings(tmp_path, window_s=600, windows=1000)
    clock = SteppedClock(T0)
    agent = made.agent(clock)
    agent.replace_sources((SlowSource(clock, 7_000),))
    run_until(agent, clock, T0 + HOURS * PERIOD_S + 60)
    agent.close()
    records = made.records(EPOCHS)
    begun = sorted(Epoch.decode(unwrap(r.value, 1 << 20)[1]).header.not_before for r in records)
    assert [at - begun[0] for at in begun] == [hour * PERIOD_S for hour in range(HOURS + 1)]
