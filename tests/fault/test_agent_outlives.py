"""What an agent must live through: outages, floods, bad but signed messages, clock jumps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from collectors.records.activity import Observation
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.config import DiagnosisSection
from edge_agent.host_diagnosis import DiagnosisSettings, HostDiagnosis
from edge_agent.windows.window_accumulator import ClosedWindow, HostClock, TaskWindows
from edge_agent.windows.window_state import DurableAccumulators, WindowState
from tests.agent_live import SteppedClock, Surroundings, demo_task, run_until, surroundings
from tests.agent_world import T0, calibrated
from tests.enrolment_kit import request, token
from tests.schedules.machine import Machine, Process
from transport.interface import Record, TransportUnavailable
from wire.catalogue import Catalogue
from wire.envelope import Kind
from wire.epoch import KeyAnnouncement
from wire.topics import KEYS, REPORTS, TASKS, announcement_key, task_key

HOUR_S = 3600


def cut_off(runtime: AgentRuntime) -> list[bool]:
    """Put a switch before the transport: True is away."""
    real, away = runtime._outbox._send, [False]

    def send(records: list[object]) -> set[int]:
        if away[0]:
            raise TransportUnavailable("away")
        return real(records)  # type: ignore[arg-type]

    runtime._outbox._send = send  # type: ignore[method-assign,assignment]
    return away


def steps(runtime: AgentRuntime, clock: SteppedClock, end_s: int) -> None:
    while clock.now_ms < end_s * 1000:
        runtime.step()
        clock.sleep_ms(max(10_000, runtime.pause_ms()))


def test_agent_publishes_again_after_an_outage_longer_than_its_records_live(
    tmp_path: Path,
) -> None:
    made = surroundings(tmp_path, window_s=900, windows=100)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    away = cut_off(runtime)
    run_until(runtime, clock, T0 + HOUR_S)
    away[0] = True
    steps(runtime, clock, T0 + 10 * HOUR_S)
    away[0] = False
    before = runtime.tally.published
    steps(runtime, clock, T0 + 12 * HOUR_S)
    # Eight windows of two hours, and what of the outage is not past retention.
    assert runtime.tally.published - before > 8 + 20
    assert runtime.status().transport_up
    assert runtime._ledger.spool_records <= 1
    runtime.close()


def test_agent_on_a_full_disk_goes_on_and_notes_later_what_it_owes(tmp_path: Path) -> None:
    made = surroundings(tmp_path, window_s=60)
    clock, disk = SteppedClock(T0), Process("agent", lambda: 0.0)
    machine = Machine()
    with machine.installed(), machine.running(disk):
        runtime = made.agent(clock)
        run_until(runtime, clock, T0 + 90)
        while not runtime._ledger.spool_records:
            runtime.step()
            clock.sleep_ms(runtime.pause_ms())
        sealed = runtime.tally.sealed
        # It is full while a report waits to leave: that goes, and is forgotten once there is room.
        assert runtime._ledger.spool_records == 1
        disk.disk_full = True
        steps(runtime, clock, T0 + 310)
        assert (runtime.tally.sealed, runtime.status().queued) == (sealed, 0)
        assert runtime.tally.refused["disk_full"] >= 2
        assert runtime._ledger.spool_records == 1
        disk.disk_full = False
        steps(runtime, clock, T0 + 480)
        runtime.close()
    assert runtime.tally.sealed > sealed
    assert runtime.status().spool_records == 0
    reports = made.records(REPORTS)
    assert len(reports) == len({record.value for record in reports}) == runtime.tally.sealed


def test_agent_steps_on_under_a_flood_of_control_records(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    runtime.start()
    runtime.step()
    junk = dataclasses.replace(made.records(TASKS)[0], value=b"junk")
    polls = 0

    class Flood:
        def poll(self, _most: int, _timeout_s: float) -> list[Record]:
            nonlocal polls
            polls += 1
            assert polls < 100, "the agent reads on as long as records come"
            return [junk] * 100

        def notes(self) -> list[object]:
            return []

        def close(self) -> None:
            return

    runtime._control._consumer = Flood()  # type: ignore[assignment]
    clock.now_ms += 5_000
    runtime.step()
    assert runtime.tally.sealed >= 1
    runtime.close()


def signed_badly(made: Surroundings) -> None:
    """A task of no catalogue, and a key that is none: each under the parties' signatures."""
    section = dataclasses.replace(made.task.sections[0], name="nosuch", weight_millionths=1)
    bad = calibrated(dataclasses.replace(made.task, series="other", sections=(section,)))
    made.publish(TASKS, task_key("other"), Kind.TASK, made.world.sign_task(bad))
    party = made.world.helper
    plain = KeyAnnouncement(party.pk, b"\xff" * 1216, T0 - 50, T0 + 86_400)
    key = dataclasses.replace(plain, signature=party.signing.sign(plain.unsigned()))
    made.publish(KEYS, announcement_key(party.pk, key.key_id), Kind.KEY_ANNOUNCEMENT, key.encode())


def test_agent_outlives_signed_messages_it_cannot_use(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    signed_badly(made)
    for start in (T0, T0 + 20):
        runtime = made.run(start, start + 10)
        assert runtime.tally.sealed >= 1
        assert set(runtime.tally.refused) >= {"catalogue", "field"}


def test_agent_leaves_out_windows_that_a_clock_jump_put_past_retention(tmp_path: Path) -> None:
    made = surroundings(tmp_path, window_s=60, windows=1_000_000)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    runtime.start()
    runtime.step()
    closed = 0
    told = runtime._windows.close_ended

    def counted(now_s: int) -> object:
        nonlocal closed
        for one in told(now_s):
            closed += 1
            yield one

    runtime._windows.close_ended = counted  # type: ignore[method-assign,assignment]
    clock.now_ms += 20 * 86_400 * 1000
    runtime.step()
    assert closed <= 6 * 60 + 1  # retention is six hours
    runtime.close()


def test_raw_totals_of_a_series_that_ended_are_erased(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    weekly = demo_task(made.world, window_s=7 * 86_400, windows=3, series="weekly")
    path = tmp_path / "open.sqlite"

    def windows() -> TaskWindows:
        store = DurableAccumulators(path)
        return TaskWindows(Catalogue.load(), ("H100",), store, lambda: HostClock(T0 * 10**9))

    first = windows()
    first.open_task(b"x" * 32, weekly, T0)  # type: ignore[arg-type]
    first.add(Observation("host_cpu", "user", 123_456, 10**9))
    first.persist()
    # The series is gone from the log: a later agent never hears of it.
    list(windows().close_ended(T0 + 7 * 86_400 + weekly.retention_s - 1))
    with DurableAccumulators(path) as store:
        assert store.windows(weekly.series_key) == [T0]
    list(windows().close_ended(T0 + 7 * 86_400 + weekly.retention_s))
    with DurableAccumulators(path) as store:
        assert store.windows(weekly.series_key) == []


@pytest.mark.parametrize("secret", ["314159", "xid79", "hardware="])
def test_nothing_measured_and_no_token_shows_in_a_repr(secret: str) -> None:
    closed = ClosedWindow(b"", 0, np.array([[314_159]]), np.ones(1, bool))  # type: ignore[arg-type]
    state = WindowState(coin=314_159)
    state.observe("incidents", "xid79", 314_159)
    state.gpu(0).covered_ns["xid79"] = 314_159
    by = token("secret")
    shown = repr((closed, state, state.gpu(0), by, request("a", by=by)))
    assert by.signing.seed_bytes().hex() not in shown
    assert secret not in shown


def diagnosing(runtime: AgentRuntime) -> HostDiagnosis:
    """Have an agent diagnose."""
    made = DiagnosisSettings(DiagnosisSection(), None, faults=False).start()
    assert isinstance(made, HostDiagnosis)
    runtime.replace_diagnosis(made)
    return made


def test_agent_reports_on_when_its_diagnosis_breaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a name that a user chose may make it."""
    made = surroundings(tmp_path, window_s=900, windows=100)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    broken = 0

    def breaks(*_: object) -> None:
        nonlocal broken
        broken += 1
        raise KeyError("/secret/cgroup")

    diagnosis = diagnosing(runtime)
    monkeypatch.setattr(diagnosis._framer, "frame", breaks)
    monkeypatch.setattr(type(diagnosis._weekly), "flush", breaks)
    run_until(runtime, clock, T0 + HOUR_S)
    assert broken > 3
    assert runtime.tally.published > 2
    runtime.close()
    out = "".join(capfd.readouterr())
    assert "/secret/cgroup" not in out


def test_agent_that_stops_counts_the_incidents_that_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = surroundings(tmp_path, window_s=900, windows=100)
    runtime = made.agent(SteppedClock(T0))
    held = [Observation("incidents", "disk_io", 1, 0)]
    monkeypatch.setattr(type(diagnosing(runtime)._weekly), "flush", lambda _self: held)
    kept: list[object] = []
    monkeypatch.setattr(runtime.windows, "add", kept.append)
    runtime.start()
    runtime.close()
    assert kept == held
