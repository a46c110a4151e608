"""A live agent over the embedded log: what leaves it, when, and what it does without its log."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from collectors.interface import SourceRegistry, UnavailableSource
from collectors.records.activity import Observation
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import LedgerMissing, LedgerRolledBack
from edge_agent.open_agent import load_host, open_agent, open_ledger, this_machine
from edge_agent.protocol.roster_book import read_signed_past
from edge_agent.sending.outbox import Outbox
from edge_agent.windows.window_state import DurableAccumulators
from privacy.noise_table import LiveSampler, SeededSampler
from tests.agent_live import SteppedClock, announce, demo_task, run_until, surroundings
from tests.agent_world import T0, open_report
from transport.files.keyfiles import KeyFileRefused, load_host_key
from transport.interface import Record, TransportUnavailable
from wire.envelope import unwrap
from wire.epoch import Epoch
from wire.fields import KEY_ANNOUNCED_AHEAD_S, task_id
from wire.report import Report
from wire.topics import EPOCHS, REPORTS

pytestmark = pytest.mark.slow


def reports_of(records: list[Record]) -> list[Report]:
    return [Report.decode(unwrap(r.value, 1 << 22)[1]) for r in records if r.topic == REPORTS]


def epochs_of(records: list[Record]) -> dict[bytes, Epoch]:
    found = [Epoch.decode(unwrap(r.value, 1 << 16)[1]) for r in records if r.topic == EPOCHS]
    return {bytes(epoch.header.epoch_id): epoch for epoch in found}


def test_agent_reports_every_window_from_its_start_on(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    made.run(T0, T0 + 42)
    records = made.records()
    assert [r.header.window for r in reports_of(records)] == [T0 + 4 * k for k in range(10)]
    assert len(epochs_of(records)) == 1


class BusyHost:
    """A source with a lot to tell in every drain."""

    name = "busy"

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        return

    def drain(self, now_boottime_ns: int) -> list[Observation]:
        return [Observation("host_cpu", "user", 10**6, now_boottime_ns) for _ in range(50)]

    def stop(self) -> None:
        return


class OddHost(BusyHost):
    """A source that this host's own state makes fail in a way that nobody thought of."""

    name = "odd"

    def drain(self, now_boottime_ns: int) -> list[Observation]:
        raise UnicodeDecodeError("utf-8", b"/srv/secret\xff", 12, 13, "invalid start byte")


def test_agent_goes_on_when_a_source_breaks_and_tells_no_name_of_it(tmp_path: Path) -> None:
    """A user of the host chooses names and files; what they break must be one source at most."""
    made, clock = surroundings(tmp_path), SteppedClock(T0)
    with capture_logs() as lines:
        runtime = made.agent(clock)
        runtime.replace_sources((OddHost(), BusyHost()))
        run_until(runtime, clock, T0 + 10)
        runtime.close()
    assert len(reports_of(made.records())) == 2
    said = str(lines)
    assert "UnicodeDecodeError" in said
    assert "secret" not in said


def test_source_that_breaks_at_its_start_is_absent_with_one_line() -> None:
    class Broken(BusyHost):
        def start(self) -> None:
            raise ValueError("/srv/secret")

    registry = SourceRegistry()
    registry.register("broken", Broken)
    registry.register("busy", BusyHost)
    running, absent = registry.start_all()
    assert [source.name for source in running] == ["busy"]
    assert absent == [UnavailableSource("broken", "busy: broken by ValueError")]


def test_agent_spools_while_the_log_is_away_and_drains_the_same_bytes(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 9)
    send = Outbox._send

    def away(_self: Outbox, _records: object) -> None:
        raise TransportUnavailable("the log is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "_send", away)
        run_until(runtime, clock, T0 + 41)
        waiting = [one.record.value for one in runtime._ledger.spooled()]
        assert runtime.status().queued < len(waiting)  # what is sealed now waits on disk alone
    assert Outbox._send is send
    assert len(waiting) >= 7
    assert not {r.value for r in made.records(REPORTS)} & set(waiting)
    run_until(runtime, clock, T0 + 80)
    assert {r.value for r in made.records(REPORTS)} >= set(waiting)
    assert runtime._ledger.spool_records <= 1
    windows = [r.header.window for r in reports_of(made.records())]
    assert len(set(windows)) == len(windows)
    runtime.close()


def test_agent_that_starts_after_retention_sends_nothing_of_before(tmp_path: Path) -> None:
    """Housekeeping drops what is over once a minute: the first send must not come before it."""
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "send_due", lambda _self, _now_ms: ())
        run_until(runtime, clock, T0 + 41)
        assert len(runtime._ledger.spooled()) >= 7
        runtime.close()
    later = T0 + 40 + made.task.retention_s
    runtime = made.run(later, later + 9)
    assert all(r.header.window >= later - 4 for r in reports_of(made.records()))
    assert runtime.tally.expired >= 7


def test_agent_full_spool_publishes_nothing_and_counts(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    spool = dataclasses.replace(made.config.spool, max_records=10)
    made.config = dataclasses.replace(made.config, spool=spool)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "send_due", lambda _self, _now_ms: ())
        run_until(runtime, clock, T0 + 64)
    assert runtime._ledger.spool_records == 9  # the tenth is for epochs and long windows
    withheld = runtime.tally.refused["spool_full"]
    assert withheld >= 5
    assert dict(runtime.status().tally.spool_dropped) == {"short_window": withheld}
    run_until(runtime, clock, T0 + 86)
    runtime.close()
    spent = [e.start for e in read_view(made.config.ledger_file).hosts[0].entries]
    assert sorted(r.header.window for r in reports_of(made.records())) == spent


def test_agent_logs_no_secret_and_no_measurement(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    with capture_logs() as lines:
        clock = SteppedClock(T0)
        runtime = made.agent(clock)
        runtime.replace_sources((BusyHost(),))
        run_until(runtime, clock, T0 + 70)
        secrets = [
            secret
            for row in runtime._effects._participant._epochs.in_force.values()
            for epoch in row
            if epoch is not None
            for secret in (epoch.k_h, epoch.k_l, epoch.keys(next(iter(epoch.derived))).k_mask)
        ]
        runtime.close()
    seed = made.world.signing_keys[0].seed_bytes()
    text = repr(lines)
    assert lines
    assert len(secrets) == 3
    for secret in (*secrets, seed):
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
    allowed = {
        "agent", "event", "log_level", "published", "sealed", "epochs", "expired", "refused",
        "spool_records", "spool_bytes", "series", "version", "window_s", "scheme", "reason",
        "detail", "spooled", "records", "spool_dropped",
    }  # fmt: skip
    assert {key for line in lines for key in line} <= allowed
    structlog.reset_defaults()


def test_agent_takes_a_new_version_of_its_task_after_the_open_window(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 10)
    announce(made, [dataclasses.replace(made.task, version=2)])
    run_until(runtime, clock, T0 + 30)
    runtime.close()
    sealed = reports_of(made.records())
    assert [r.header.window for r in sealed] == [T0 + 4 * k for k in range(len(sealed))]
    assert len({r.task_id for r in sealed}) == 2
    switch = [a.task_id != b.task_id for a, b in itertools.pairwise(sealed)]
    assert sum(switch) == 1


def test_agent_keeps_a_long_window_over_a_restart(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    hourly = demo_task(made.world, window_s=3600, windows=24, series="hourly", weight=120_000)
    announce(made, [made.task, hourly], roster_version=2)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    runtime.replace_sources((BusyHost(),))
    run_until(runtime, clock, T0 + 20)
    runtime.close()
    made.run(T0 + 3590, T0 + 3610)
    tid = task_id(made.world.sign_task(hourly)[:-128])
    (report,) = [r for r in reports_of(made.records()) if r.task_id == tid]
    assert report.header.window == T0
    epoch = epochs_of(made.records())[bytes(report.epoch_id)]
    opened = open_report(made.world, epoch, report)
    cpu = hourly.slices()["host_cpu"]
    assert opened[cpu].sum() > 0
    with DurableAccumulators(made.config.windows_file) as store:
        assert T0 not in store.windows(hourly.series_key)


def test_agent_refuses_after_its_ledger_is_gone_and_recovers(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    made.run(T0, T0 + 20)
    before = len(reports_of(made.records()))
    binding = this_machine(made.config)
    assert load_host_key(made.config.host.key_file, binding).ledger_exists
    shutil.rmtree(made.config.host.state_dir)
    with pytest.raises(LedgerMissing, match="agent ledger recover"):
        made.agent(SteppedClock(T0 + 20))
    made.config.fence_file.unlink()
    with pytest.raises(LedgerMissing, match="agent ledger recover"):
        made.agent(SteppedClock(T0 + 20))
    host = load_host(made.config, binding)
    with made.log() as log:
        past = read_signed_past(log, host.host_id, made.world.pins)
    assert [(k.series, k.weight_millionths) for k in past.known] == [
        (made.task.series_key, 600_000)
    ]
    Ledger.recover(
        made.config.ledger_file, made.config.fence_file, hosts=[host.host_id], binding=binding,
        now_s=T0 + 24, signed_time_s=past.signed_time_s, known=past.known,
    ).close()  # fmt: skip
    made.run(T0 + 24, T0 + 50)
    sealed = reports_of(made.records())
    windows = [r.header.window for r in sealed]
    assert len(set(windows)) == len(windows)
    assert min(windows[before:]) > T0 + 24


def test_agent_refuses_a_rolled_back_ledger(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    made.run(T0, T0 + 10)
    shutil.copytree(made.config.host.state_dir, tmp_path / "backup")
    made.run(T0 + 10, T0 + 20)
    shutil.rmtree(made.config.host.state_dir)
    shutil.copytree(tmp_path / "backup", made.config.host.state_dir)
    with pytest.raises(LedgerRolledBack):
        made.agent(SteppedClock(T0 + 20))


@pytest.mark.parametrize("behind_s", [60 + KEY_ANNOUNCED_AHEAD_S + 10, T0])
def test_agent_that_starts_behind_what_an_aggregator_has_signed_waits_for_its_clock(
    tmp_path: Path, behind_s: int
) -> None:
    """Before NTP comes a machine may begin in 1970; its keys came into force a minute before T0."""
    made = surroundings(tmp_path)
    made.run(T0, T0 + 20)
    before = reports_of(made.records())
    clock = SteppedClock(T0 - behind_s)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 - behind_s + 20)
    assert (runtime.tally.sealed, runtime.tally.epochs) == (0, 0)
    clock.now_ms = (T0 + 40) * 1000
    run_until(runtime, clock, T0 + 60)
    runtime.close()
    windows = [report.header.window for report in reports_of(made.records())]
    assert len(windows) == len(set(windows)) == len(before) + runtime.tally.published - 1
    assert min(windows[len(before) :]) >= T0 + 20


def test_agent_with_its_clock_set_back_while_it_runs_publishes_nothing(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 20)
    sealed = runtime.tally.sealed
    clock.now_ms -= 3600 * 1000
    for _ in range(20):
        runtime.step()
        clock.sleep_ms(runtime.pause_ms())
    assert runtime.tally.sealed == sealed
    runtime.close()


def test_agent_on_a_cloned_machine_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = surroundings(tmp_path)
    made.run(T0, T0 + 10)
    monkeypatch.setattr("edge_agent.open_agent.keyfiles.machine_id", lambda: "another machine")
    with pytest.raises(KeyFileRefused):
        made.agent(SteppedClock(T0 + 10))


def test_agent_reinstalled_with_an_old_key_refuses(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    made.run(T0, T0 + 10)
    made.config.ledger_file.unlink()
    with pytest.raises(LedgerMissing):
        open_ledger(made.config, this_machine(made.config), T0 + 10)


def test_agent_run_refuses_seeded_noise_and_demo_tasks(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    with pytest.raises(ValueError, match="seeded noise"):
        open_agent(made.config, sampler=SeededSampler(1))
    clock = SteppedClock(T0)
    runtime, _ = open_agent(made.config, sampler=LiveSampler(os.urandom), clock=clock)
    run_until(runtime, clock, T0 + 10)
    runtime.close()
    assert runtime.tally.refused["demo_task"] == 1
    assert made.records() == []


def test_agent_stops_in_order_and_leaves_its_spool(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime: AgentRuntime = made.agent(clock)
    run = _stop_after(runtime, 12)
    runtime.run()
    assert run() >= 12
    spent = [e.start for e in read_view(made.config.ledger_file).hosts[0].entries]
    made.run(clock.now_ms // 1000, clock.now_ms // 1000 + 8)
    windows = [r.header.window for r in reports_of(made.records())]
    assert len(set(windows)) == len(windows)
    assert set(windows) >= set(spent)


def _stop_after(runtime: AgentRuntime, steps: int) -> Callable[[], int]:
    """Have the agent stopped after some steps, as a signal would."""
    count = 0
    step = runtime.step

    def counted() -> None:
        nonlocal count
        count += 1
        step()
        if count >= steps:
            runtime.stop()

    runtime.step = counted  # type: ignore[method-assign]
    return lambda: count
