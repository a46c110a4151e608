"""A whole fleet of real processes whose clocks jump, and that are suspended and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_agent.ledger.ledger_db import read_view
from pointillist.fleet.trial_run import TrialRun
from pointillist.play.processes import Family, RoleProcess
from tests.fleet_kit import fleet_folder
from tests.stepped_clock_kit import SteppedClocks
from tests.wait_kit import until

pytestmark = [pytest.mark.release, pytest.mark.root, pytest.mark.timeout(900)]

HOUR_S = 3600
WINDOW_S = 10


class LiveTrial:
    """A trial that has released its first window, and the clocks of its machines."""

    def __init__(self, folder: Path, family: Family, clocks: SteppedClocks) -> None:
        self._family, self.clocks = family, clocks
        self._run = TrialRun(folder, family, lambda _line: None)
        self._run.bring_up()
        self._run.first_release()

    def role(self, name: str) -> RoleProcess:
        return next(child for child in self._family.children if child.name == name)

    def released(self, more: int = 2) -> None:
        """Wait until more windows are released; nobody has ended."""
        wanted = self._run.status()["windows_released"] + more

        def enough() -> bool:
            self._family.check()
            return bool(self._run.status()["windows_released"] >= wanted)

        until(enough)

    def troubles(self) -> set[str]:
        return set(self._run.status()["troubles"])

    def newest_end(self) -> int:
        """End of the newest window that is settled, Unix time."""
        return int(self._run.status()["last_windows"]["trial"]["window_end"])

    def spent_by_the_host(self) -> Counter[int]:
        """The windows that the real host has spent, by their start."""
        ledger = next((self._run.folders.base / "hosts").rglob("ledger.sqlite"))
        entries = [entry for host in read_view(ledger).hosts for entry in host.entries]
        assert all(entry.end <= time.time() for entry in entries)
        return Counter(entry.start for entry in entries)

    def sent_by_the_host(self) -> int:
        spent = self.spent_by_the_host()
        assert set(spent.values()) <= {1}
        return len(spent)

    def restart_host(self) -> None:
        old = self.role("host")
        old.process.terminate()
        old.process.wait(30)
        self._family.children.remove(old)
        config = self._run.folders.agent_toml(self._run.settings.host)
        self._family.start("host", "pointillist", "agent", "run", "--config", str(config))

    def signal(self, number: int) -> None:
        for child in self._family.children:
            os.kill(child.process.pid, number)


@contextmanager
def live_trial() -> Iterator[LiveTrial]:
    with fleet_folder() as base, pytest.MonkeyPatch.context() as patch:
        folder, sizes = base / "trial", ("--hosts", "40", "--windows", "3000")
        command = [sys.executable, "-m", "pointillist", "fleet", "init", str(folder), *sizes]
        command += ["--window-s", str(WINDOW_S)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        clocks = SteppedClocks(base / "clocks", patch)
        with Family(folder / "logs") as family:
            yield LiveTrial(folder, family, clocks)


@pytest.fixture(scope="module")
def trial() -> Iterator[LiveTrial]:
    with live_trial() as made:
        yield made


def test_leader_whose_clock_jumps_closes_no_window_and_goes_on(trial: LiveTrial) -> None:
    trial.clocks.step("leader", 3 * HOUR_S)
    trial.clocks.step("helper", -3 * HOUR_S)
    until(lambda: trial.troubles() == {"clock_stepped"})
    trial.clocks.step("leader")
    until(lambda: not trial.troubles())
    trial.released(1)
    trial.clocks.step("helper")
    assert trial.newest_end() <= time.time()


@pytest.mark.parametrize("step_s", [3 * HOUR_S, -3 * HOUR_S])
def test_agent_whose_clock_jumps_spends_no_window_ahead_and_none_twice(
    trial: LiveTrial, step_s: int
) -> None:
    before = trial.sent_by_the_host()
    trial.clocks.step("agent", step_s)
    until(lambda: trial.sent_by_the_host() >= before + 2)
    trial.clocks.step("agent")
    until(lambda: trial.sent_by_the_host() >= before + 3)


def test_agent_of_a_machine_without_a_battery_waits_for_ntp(trial: LiveTrial) -> None:
    """It starts in 1970, as the machine does, and reports as soon as its clock is right."""
    young_s = 30 - int(time.clock_gettime(time.CLOCK_BOOTTIME))
    trial.clocks.step("agent", 1000 - int(time.time()), young_s)
    trial.restart_host()
    before = trial.sent_by_the_host()
    until(lambda: b"agent" in trial.role("host").log.read_bytes())
    trial.released()
    assert trial.sent_by_the_host() == before
    trial.clocks.step("agent", 0, young_s)
    until(lambda: trial.sent_by_the_host() >= before + 2)
    trial.released(1)


def test_fleet_that_is_suspended_for_longer_than_a_windows_lateness_goes_on(
    trial: LiveTrial,
) -> None:
    """What a host slept over it neither sends nor spends."""
    before, asleep_s = trial.sent_by_the_host(), time.time()
    trial.signal(signal.SIGSTOP)
    time.sleep(45)
    trial.signal(signal.SIGCONT)
    slept = range(-(-int(asleep_s) // WINDOW_S) * WINDOW_S, int(time.time()) - 25, WINDOW_S)
    trial.released()
    until(lambda: trial.sent_by_the_host() >= before + 2)
    assert slept
    assert not trial.spent_by_the_host().keys() & set(slept)
