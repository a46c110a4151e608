"""One drain is one value, for all who use it: the agent's loop, `agent top`, live frames."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from collectors.devices.device_port import DeviceSample
from collectors.interface import Source, SourceRegistry, SourceUnavailable, UnavailableSource
from collectors.records.activity import Observation, Record, StepMarks, StepSource
from collectors.rounds import Drained, Rounds
from diagnosis.detect.findings import Cause, Diagnosis
from diagnosis.frames.framer import Framer, LiveFrames
from edge_agent.agent_runtime import Observer
from edge_agent.config import DiagnosisSection
from edge_agent.host_diagnosis import Diagnosed, DiagnosisSettings, HostDiagnosis
from edge_agent.service.top_feed import SourceFeed
from edge_agent.windows.window_accumulator import TaskWindows
from tests.agent_live import SteppedClock, run_until, surroundings
from tests.agent_world import T0 as AGENT_T0
from tests.frames_kit import T0, S, cgroup, cpu

JOB, PID, MS = "/train/rank0", 7, 1_000_000
SLOW_FROM, SECONDS = 31, 45


class _Counted:
    """A source of one observation a drain."""

    def __init__(self, name: str = "counted") -> None:
        self.name, self.stopped = name, 0

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        return

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        yield Observation("host_cpu", "steal", 1, now_boottime_ns)

    def stop(self) -> None:
        self.stopped += 1


class _CutShort(_Counted):
    """Fails after its first record."""

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        yield from super().drain(now_boottime_ns)
        raise SourceUnavailable("gone")


LOOK = DeviceSample(())
ABSENT = UnavailableSource("a part", "not here")


class _Looking(_Counted):
    """Looks at devices, and lacks a part."""

    absent = (ABSENT,)

    def __init__(self) -> None:
        super().__init__("looking")

    def latest(self, now_boottime_ns: int) -> DeviceSample | None:
        return LOOK


class _SlowJob(_Counted):
    """The marks and counts of a job that another one takes the CPU of from SLOW_FROM on."""

    def __init__(self, began_ns: int = 0) -> None:
        super().__init__("slow_job")
        self._rng = np.random.default_rng(7)
        self._began_ns = began_ns

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        slow = now_boottime_ns - self._began_ns >= SLOW_FROM * S
        ended = now_boottime_ns - S + np.arange(1, 101) * (S // 100)
        took = self._rng.normal(9.0, 0.2, 100)
        took[::10] += 25.0 if slow else 0.0
        yield StepMarks(
            PID, PID * S, JOB, "train", "step", StepSource.UPROBE, ended,
            (took * MS).astype(np.int64), 0, None,
        )  # fmt: skip
        waits = round((900 if slow else 4) * MS * self._rng.normal(1.0, 0.05))
        thief = (1100 if slow else 1) * MS
        yield cpu({"run_delay_ns": 3 * waits, "cpu_ns": 700 * MS + thief}, at_ns=now_boottime_ns)
        yield cgroup(
            {
                JOB: {"cpu_ns": 700 * MS, "run_delay_ns": waits},
                "/others/thief": {"cpu_ns": thief, "run_delay_ns": 2 * waits},
            },
            at_ns=now_boottime_ns,
        )


def registry_of(*sources: Source) -> SourceRegistry:
    registry = SourceRegistry()
    for source in sources:
        registry.register(source.name, lambda source=source: source)  # type: ignore[misc]
    return registry


def test_round_gives_each_drain_as_one_value_and_names_who_failed() -> None:
    rounds = Rounds([_Counted(), _CutShort("cut"), _Looking()])
    drains = list(rounds.round(T0))
    assert [(one.name, len(one.records), one.failure) for one in drains] == [
        ("counted", 1, None), ("cut", 1, "gone"), ("looking", 1, None),
    ]  # fmt: skip
    assert [one.look for one in drains] == [None, None, LOOK]
    assert rounds.failing == {"cut": "gone"}
    assert rounds.lacking == [ABSENT]


def test_rounds_that_go_on_with_others_stop_who_left() -> None:
    stays, leaves, comes = _Counted("stays"), _Counted("leaves"), _Counted("comes")
    rounds = Rounds([stays, leaves]).replace([stays, comes])
    assert [one.name for one in rounds.round(T0)] == ["stays", "comes"]
    assert (stays.stopped, leaves.stopped) == (0, 1)


class _Kept(Observer):
    """Notes what an agent shows."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.found: list[Diagnosed] = []

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        self.names.append(drained.name)

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:
        self.found.append(found)


def test_agent_hands_one_drain_to_windows_diagnosis_and_who_looks(tmp_path: Path) -> None:
    """In whatever order its sources stand: diagnosis comes after all of them."""
    clock, kept = SteppedClock(AGENT_T0), _Kept()
    runtime = surroundings(tmp_path).agent(clock)
    runtime.observe(kept)
    runtime.replace_sources([_SlowJob(clock.boottime_ns()), _Counted()])
    made = DiagnosisSettings(DiagnosisSection(), None, faults=False).start()
    assert isinstance(made, HostDiagnosis)
    runtime.replace_diagnosis(made)
    assert runtime.status().sources == ("slow_job", "counted", "diagnosis")
    run_until(runtime, clock, AGENT_T0 + SECONDS)
    assert isinstance(runtime.windows, TaskWindows)
    (window,) = runtime.windows.open_windows()
    runtime.close()
    assert kept.names[:2] == ["slow_job", "counted"]
    assert kept.names.count("slow_job") == len(kept.found) >= SECONDS - 1
    causes = [
        one.cause for found in kept.found for one in found.findings if isinstance(one, Diagnosis)
    ]
    assert causes[-1] is Cause.CPU_CONTENTION
    assert window.row.any()


def test_agent_goes_on_when_diagnosis_breaks_and_keeps_names_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = DiagnosisSettings(DiagnosisSection(), None, faults=False).start()
    assert isinstance(made, HostDiagnosis)
    monkeypatch.setattr(made._framer, "take", _break)
    made.take(Drained("counted", []))
    assert made.look(T0).failure == "diagnosis: broken by KeyError"
    assert made.look(T0 + S).failure is None
    monkeypatch.setattr(made._framer, "frame", _break)
    assert made.look(T0 + 2 * S).failure == "diagnosis: broken by KeyError"


def _break(*_: object) -> None:
    raise KeyError("/secret/cgroup")


def test_top_without_an_agent_shows_a_diagnosis_of_what_its_sources_drained() -> None:
    clock = SteppedClock(0)
    settings = DiagnosisSettings(DiagnosisSection(), None, faults=False)
    feed = SourceFeed(registry_of(_SlowJob()), settings, clock)
    for _ in range(SECONDS):
        feed.poll()
        clock.now_ms += 1_000
    view = feed.view()
    feed.stop()
    assert view is not None
    assert view["agent"]["failing"] == {}
    (one,) = view["findings"]
    assert (one["subject"], one["state"], one["cause"]) == (JOB, "spike", "cpu_contention")


def test_top_without_an_agent_goes_on_when_a_source_breaks_and_keeps_no_journal(
    tmp_path: Path,
) -> None:
    feed = SourceFeed(registry_of(_CutShort("cut"), _Counted()), clock=SteppedClock(0))
    feed.poll()
    view = feed.view()
    assert view is not None
    assert view["agent"]["failing"] == {"cut": "gone"}
    for journal in (tmp_path / "kept", None):
        made = DiagnosisSettings(DiagnosisSection(), journal, faults=False).start()
        assert isinstance(made, HostDiagnosis)
        made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_live_frames_go_on_past_a_failure_and_stop_their_sources() -> None:
    counted, cut = _Counted(), _CutShort("cut")
    with LiveFrames(registry_of(counted, cut), Framer()) as live:
        assert live.frame(T0) is None
        assert live.frame(T0 + S) is not None
        assert live.failing == {"cut": "gone"}
    assert (counted.stopped, cut.stopped, tuple(live.running)) == (1, 1, ())
