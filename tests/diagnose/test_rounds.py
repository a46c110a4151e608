"""Whoever drains sources tells who listens: the agent's loop, `agent top`, live frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from collectors.port import Source, SourceRegistry, SourceUnavailable
from collectors.records.activity import Observation, Record, StepMarks, StepSource
from collectors.rounds import Rounds
from diagnosis.frames.framer import Framer
from diagnosis.frames.live import LiveFrames
from edge_agent.config import DiagnosisSection
from edge_agent.host_diagnosis import DiagnosisSource
from edge_agent.service.feed import SourceFeed
from tests.agent_live import SteppedClock
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


class _Listening(_Counted):
    """Notes whom it hears, and holds one observation back."""

    def __init__(self, name: str = "listening") -> None:
        super().__init__(name)
        self.heard: list[tuple[str, int]] = []

    def hear(self, source: Source, records: Sequence[Record], _now_ns: int) -> None:
        self.heard.append((source.name, len(records)))

    def rest(self) -> list[Record]:
        return [Observation("incidents", "disk_io", 1, 0)]


class _Deaf(_Listening):
    """Breaks on what it hears, by a name that a user chose."""

    def hear(self, source: Source, records: Sequence[Record], _now_ns: int) -> None:
        raise KeyError("/secret/cgroup")


class _SlowJob(_Counted):
    """The marks and counts of a job that another one takes the CPU of from SLOW_FROM on."""

    def __init__(self) -> None:
        super().__init__("slow_job")
        self._rng = np.random.default_rng(7)
        self._began_ns = SteppedClock(0).boottime_ns()

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


def test_round_tells_every_listener_of_all_but_its_own_drain() -> None:
    first, second = _Listening("first"), _Listening("second")
    rounds = Rounds([_Counted(), first, _CutShort("cut"), second])
    drains = list(rounds.round(T0))
    assert [(one.source.name, len(one.records)) for one in drains] == [
        ("counted", 1), ("first", 1), ("cut", 1), ("second", 1),
    ]  # fmt: skip
    assert first.heard == [("counted", 1), ("cut", 1), ("second", 1)]
    assert second.heard == [("counted", 1), ("first", 1), ("cut", 1)]
    assert rounds.failing == {"cut": "gone"}
    assert len(list(rounds.rest())) == 2


def test_round_goes_on_after_a_listener_that_breaks_and_keeps_names_to_itself() -> None:
    hears = _Listening()
    rounds = Rounds([_Deaf("deaf"), _Counted(), hears])
    assert [one.unheard for one in rounds.round(T0)][1] == [("deaf", "deaf: broken by KeyError")]
    assert hears.heard == [("deaf", 1), ("counted", 1)]
    assert rounds.failing == {"deaf": "deaf: broken by KeyError"}


def test_rounds_that_go_on_with_others_stop_who_left() -> None:
    stays, leaves, comes = _Counted("stays"), _Counted("leaves"), _Listening("comes")
    rounds = Rounds([stays, leaves]).replace([stays, comes])
    list(rounds.round(T0))
    assert (stays.stopped, leaves.stopped, comes.heard) == (0, 1, [("stays", 1)])


def test_top_without_an_agent_shows_a_diagnosis_of_what_its_sources_drained() -> None:
    clock = SteppedClock(0)
    found = DiagnosisSource(DiagnosisSection(), None, faults=False)
    feed = SourceFeed(registry_of(_SlowJob(), found), clock)
    for _ in range(SECONDS):
        feed.poll()
        clock.now_ms += 1_000
    view = feed.view()
    feed.stop()
    assert view is not None
    assert view["agent"]["failing"] == {}
    (one,) = view["diagnosis"]
    assert (one["subject"], one["state"], one["cause"]) == (JOB, "spike", "cpu_contention")


def test_top_without_an_agent_goes_on_when_a_source_breaks_and_keeps_no_journal(
    tmp_path: Path,
) -> None:
    feed = SourceFeed(registry_of(_Deaf("deaf"), _Counted()), SteppedClock(0))
    feed.poll()
    view = feed.view()
    assert view is not None
    assert view["agent"]["failing"] == {"deaf": "deaf: broken by KeyError"}
    kept = DiagnosisSource(DiagnosisSection(), tmp_path / "kept", faults=False)
    looks = DiagnosisSource(DiagnosisSection(), None, faults=False)
    for one in (kept, looks):
        one.start()
        one.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_live_frames_tell_listeners_and_stop_their_sources() -> None:
    hears, cut = _Listening(), _CutShort("cut")
    with LiveFrames(registry_of(_Counted(), cut, hears), Framer()) as live:
        assert live.frame(T0) is None
        assert live.frame(T0 + S) is not None
        assert live.failing == {"cut": "gone"}
        assert hears.heard == [("counted", 1), ("cut", 1)] * 2
    assert (hears.stopped, cut.stopped, tuple(live.running)) == (1, 1, ())
