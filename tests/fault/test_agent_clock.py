"""A clock that was ahead and is put right costs a host nothing but the windows that it spent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aggregator.protocol.epochs import AdmittedEpochs, Seal
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.clock import SteadyClock
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import HostEntry
from edge_agent.protocol.eligibility import window_entry
from privacy.budget import peak
from tests.agent_live import Surroundings, surroundings
from tests.agent_world import T0, World, new_ledger
from tests.protocol_kit import T0 as EPOCHS_FROM
from tests.protocol_kit import build_world, hpke_pair, make_epoch
from transport.process.supervision import BELIEVED_AFTER_MS, STEP_MS
from wire.envelope import unwrap
from wire.fields import KeyId, key_id
from wire.rejection import ReportRejected
from wire.report import Report
from wire.topics import REPORTS

DAY_S = 86_400
YEAR_S = 365 * DAY_S


@dataclass
class GlitchClock:
    """A wall clock that can be set apart from the boot clock, as a machine's is."""

    boot_ms: int
    ahead_ms: int = 0

    def unix_ms(self) -> int:
        return self.boot_ms + self.ahead_ms

    def boottime_ns(self) -> int:
        return self.boot_ms * 1_000_000

    def sleep_ms(self, span_ms: int) -> None:
        self.boot_ms += span_ms


# The clock as an agent reads it


@pytest.mark.parametrize("step_s", [YEAR_S, 90, -90, -YEAR_S])
def test_step_that_is_mended_within_ten_minutes_is_never_seen(step_s: int) -> None:
    wall = GlitchClock(T0 * 1000)
    clock = SteadyClock(wall)
    wall.ahead_ms = 1000 * step_s
    for _ in range(9):
        wall.sleep_ms(60_000)
        assert clock.unix_ms() == wall.boot_ms
    wall.ahead_ms = 0
    wall.sleep_ms(BELIEVED_AFTER_MS)
    assert clock.unix_ms() == wall.boot_ms


def test_step_that_stands_for_ten_minutes_is_believed() -> None:
    wall = GlitchClock(T0 * 1000)
    clock = SteadyClock(wall)
    wall.ahead_ms = 1000 * DAY_S
    assert clock.unix_ms() == wall.boot_ms
    wall.sleep_ms(BELIEVED_AFTER_MS)
    assert clock.unix_ms() == wall.boot_ms + 1000 * DAY_S


def test_step_on_top_of_a_step_stands_for_ten_minutes_of_its_own() -> None:
    wall = GlitchClock(T0 * 1000)
    clock = SteadyClock(wall)
    wall.ahead_ms = 1000 * 3600
    clock.unix_ms()
    wall.sleep_ms(BELIEVED_AFTER_MS - 1000)
    assert clock.unix_ms() == wall.boot_ms
    wall.ahead_ms = -1000 * DAY_S
    clock.unix_ms()
    wall.sleep_ms(BELIEVED_AFTER_MS - 1000)
    assert clock.unix_ms() == wall.boot_ms
    wall.sleep_ms(1000)
    assert clock.unix_ms() == wall.boot_ms - 1000 * DAY_S


@pytest.mark.parametrize("step_s", [YEAR_S, -YEAR_S])
def test_step_on_a_machine_that_has_just_started_is_ntp_s_and_is_believed_at_once(
    step_s: int,
) -> None:
    wall = GlitchClock(30_000, T0 * 1000)
    clock = SteadyClock(wall)
    wall.ahead_ms += 1000 * step_s
    assert clock.unix_ms() == wall.unix_ms()
    wall.sleep_ms(BELIEVED_AFTER_MS)
    wall.ahead_ms -= 1000 * step_s
    assert clock.unix_ms() == wall.unix_ms() + 1000 * step_s


def test_discipline_is_followed_at_once() -> None:
    wall = GlitchClock(T0 * 1000)
    clock = SteadyClock(wall)
    for _ in range(10):
        wall.ahead_ms += STEP_MS
        assert clock.unix_ms() == wall.unix_ms()


# The ledger


def test_entry_of_a_year_ahead_bars_its_own_window_alone(tmp_path: Path) -> None:
    world = World(1)
    task = world.task()
    ledger = new_ledger(tmp_path, world)
    for start in (T0, T0 + YEAR_S // 60 * 60):
        spent = HostEntry(world.host_ids[0], window_entry(task, start))
        ledger.commit_sealed([spent], [], start + 60)
    ledger.close()
    paths = tmp_path / "ledger.sqlite", tmp_path / "host.key.fence"
    now_s = T0 + 180
    ledger = Ledger.open(*paths, binding=b"machine")
    ledger.commit_sealed([replace(spent, entry=window_entry(task, T0 + 120))], [], now_s)
    for start in (T0, T0 + 60, T0 + 120, T0 + YEAR_S // 60 * 60):
        entry = window_entry(task, start)
        with pytest.raises(Exception, match="expected a window after"):
            ledger.commit_sealed([replace(spent, entry=entry)], [], now_s)
    ledger.close()


# The running agent


def turn(runtime: AgentRuntime, clock: GlitchClock, span_s: int) -> None:
    until_ms = clock.boot_ms + 1000 * span_s
    while clock.boot_ms < until_ms:
        runtime.step()
        clock.sleep_ms(runtime.pause_ms())


def reported(made: Surroundings) -> list[int]:
    """The windows of all reports on the log, as they came."""
    found = [Report.decode(unwrap(r.value, 10**6)[1]) for r in made.records(REPORTS)]
    return [report.header.window for report in found]


@pytest.mark.parametrize("restart", [False, True])
def test_host_goes_on_after_its_clock_was_a_day_ahead(tmp_path: Path, restart: bool) -> None:
    made = surroundings(tmp_path, window_s=60, windows=1_000_000)
    clock = GlitchClock(T0 * 1000)
    runtime = made.agent(clock)  # type: ignore[arg-type]
    runtime.start()
    turn(runtime, clock, 180)
    clock.ahead_ms = 1000 * DAY_S
    turn(runtime, clock, 720)
    assert max(e.start for e in entries(runtime, made)) > T0 + DAY_S - 3600, "it was believed"
    if restart:
        runtime.close()
    clock.ahead_ms = 0
    if restart:
        runtime = made.agent(clock)  # type: ignore[arg-type]
        runtime.start()
    before = len(reported(made))
    turn(runtime, clock, 840)
    now_s = clock.boot_ms // 1000
    new = reported(made)[before:]
    assert len(new) == len(set(new))
    assert {now_s // 60 * 60 - 60 * n for n in (2, 3, 4)} <= set(new)
    assert len(set(reported(made))) == len(reported(made)), "no window left twice"
    assert peak(entries(runtime, made)) <= 1
    runtime.close()


def entries(runtime: AgentRuntime, made: Surroundings):  # type: ignore[no-untyped-def]
    """Everything the host has spent."""
    return list(runtime._ledger.view([made.world.host_ids[0]]).hosts[0].entries)


def test_host_whose_clock_was_a_year_ahead_for_five_minutes_notices_nothing(
    tmp_path: Path,
) -> None:
    made = surroundings(tmp_path, window_s=60, windows=1_000_000)
    clock = GlitchClock(T0 * 1000)
    runtime = made.agent(clock)  # type: ignore[arg-type]
    runtime.start()
    turn(runtime, clock, 120)
    clock.ahead_ms = 1000 * YEAR_S
    turn(runtime, clock, 300)
    clock.ahead_ms = 0
    turn(runtime, clock, 120)
    windows = reported(made)
    assert windows == list(range(T0, T0 + 60 * len(windows), 60))
    assert len(windows) >= 8
    runtime.close()


def test_host_that_started_in_1970_takes_its_tasks_once_ntp_has_come(tmp_path: Path) -> None:
    """By such a clock a task begins in more than a year, and is refused; nobody sends it again."""
    made = surroundings(tmp_path, window_s=60, windows=1_000_000)
    clock = GlitchClock(30_000)
    runtime = made.agent(clock)  # type: ignore[arg-type]
    runtime.start()
    turn(runtime, clock, 20)
    assert not runtime.tasks
    clock.ahead_ms = 1000 * T0 - clock.boot_ms
    turn(runtime, clock, 180)
    assert runtime.tasks
    assert reported(made)
    runtime.close()


# The aggregators


def book(now_s: int) -> AdmittedEpochs:
    world = build_world(3)
    pair = hpke_pair("helper")
    pairs = {key_id(pair.public_bytes): pair}
    made = AdmittedEpochs(world.directory(), Seal.HELPER, lambda kid: pairs.get(KeyId(kid)))
    ahead, _ = make_epoch(world, world.hosts[0], name=1, not_before=now_s + 3000, ledger_ctr=7)
    assert made.admit(ahead.encode(), now_s) is not None
    return made


@pytest.mark.parametrize(
    ("counter", "later_s", "admitted"),
    [(8, 100, True), (7, 100, False), (6, 100, True), (8, 2970, False)],
    ids=["right again", "a counter twice", "from before", "the party's clock has passed it"],
)
def test_epoch_that_began_ahead_of_a_partys_clock_bars_none_after_it(
    counter: int, later_s: int, admitted: bool
) -> None:
    """2,970 s later the mark is no longer ahead: what contradicts it is a rolled-back ledger."""
    made, world = book(EPOCHS_FROM), build_world(3)
    begun = EPOCHS_FROM + 100
    epoch, _ = make_epoch(world, world.hosts[0], name=2, not_before=begun, ledger_ctr=counter)
    if admitted:
        assert made.admit(epoch.encode(), EPOCHS_FROM + later_s) is not None
        return
    with pytest.raises(ReportRejected, match="epoch_counter"):
        made.admit(epoch.encode(), EPOCHS_FROM + later_s)
