"""One run: the sources look on while a fault comes and goes, and a file says what they saw."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from bench.diagnosis.cgroups import PARENT
from bench.diagnosis.disturbance import Disturbance, too_much
from bench.diagnosis.faults.fault import GROWING, Fault, Graded
from bench.diagnosis.faults.others import NONE
from bench.diagnosis.faults.registry import INJECTORS
from bench.diagnosis.impact import Impact, impact
from bench.diagnosis.plan import INTENSITIES, Run
from bench.diagnosis.workload import Workload
from bench.record import commit, processor
from collectors.boot_clock import boottime_ns
from collectors.steps.steps_source import StepProbe, StepsSource
from diagnosis.frames.frame import HostSample
from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from diagnosis.frames.recording import RecordingWriter

FORMAT: Final = 1
_SETTLE_S: Final = 1.0
"""Frames of the first second after the sources have started are left out."""


class RunRefusedError(RuntimeError):
    """A run that must not count: its fault was not there, or its workload fell."""


@dataclass(slots=True)
class Injection:
    """One fault of a run, and when it was there."""

    fault: Fault
    start_ns: int = 0
    end_ns: int = 0
    effect: dict[str, object] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        return {
            "injector": self.fault.injector,
            "cause": self.fault.cause,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "effect": self.effect,
        }


class Schedule(threading.Thread):
    """Begins and ends the faults of a run at their times, beside the frames' loop."""

    def __init__(self, run: Run, injections: Sequence[Injection]) -> None:
        super().__init__(daemon=True)
        self._run, self._injections = run, injections
        self._cut = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._play()
        except Exception as error:  # noqa: BLE001 - handed to the recorder's thread
            self.error = error

    def _play(self) -> None:
        self._cut.wait(self._run.before_s)
        for place, injection in enumerate(self._injections):
            if place:
                self._cut.wait(self._run.stagger_s)
            injection.start_ns = boottime_ns()
            injection.fault.begin()
        ends = time.monotonic() + self._run.fault_s
        ends -= self._run.stagger_s * max(0, len(self._injections) - 1)
        if self._run.intensity == GROWING:
            self._grow(ends)
        self._cut.wait(max(0.0, ends - time.monotonic()))
        for injection in self._injections:
            injection.effect = injection.fault.end().document()
            injection.end_ns = boottime_ns()

    def _grow(self, ends: float) -> None:
        """Strengthen the fault each second; in the last fifth it is as strong as it gets."""
        began = time.monotonic()
        while time.monotonic() < ends and not self._cut.wait(1.0):
            share = (time.monotonic() - began) / (0.8 * (ends - began))
            for injection in self._injections:
                assert isinstance(injection.fault, Graded)
                injection.fault.grow(share)

    def cut(self) -> None:
        """End early: what is left is withdrawn at once."""
        self._cut.set()
        self.join()


def record(
    run: Run, works: Sequence[Workload], path: Path, *, undisturbed: bool = False
) -> dict[str, Any]:
    """Record a run on workloads that are warm; returns the facts written beside the frames.

    The faults strike the first workload.

    undisturbed   refuse a run beside which others took more than may be
    Raises      RunRefusedError, and leaves no file
    """
    injections = [
        Injection(INJECTORS[name](works[0], run.intensity, run.seed)) for name in run.injectors
    ]
    disturbance, began_ns = Disturbance(), boottime_ns()
    with _sources(works) as live, RecordingWriter(path) as writer:
        for injection in injections:
            injection.fault.watch()
        schedule = Schedule(run, injections)
        schedule.start()
        ends = time.monotonic() + run.seconds + _SETTLE_S
        try:
            for frame in live.frames(until=lambda: time.monotonic() > ends):
                disturbance.look()
                if frame.boottime_ns - began_ns > _SETTLE_S * 1e9:
                    writer.append(only_subjects(frame, works))
        finally:
            schedule.cut()
            for work in works:
                work.rest()
        facts = _facts(run, works, injections, began_ns) | {
            "disturbance": disturbance.document(),
            "sources": {
                "absent": {absence.source: absence.reason for absence in live.absent},
                "failing": dict(live.failing),
                "cores": round(live.cpu_ns / (run.seconds * 1e9), 5),
            },
        }
        _check(schedule, works, facts)
        calm = set(run.causes) <= {NONE}
        if undisturbed and (disturbed := too_much(facts["disturbance"], calm=calm)):
            raise RunRefusedError(f"others disturbed it: {disturbed}")
        writer.close(facts)
    return facts


def only_subjects(frame: HostSample, works: Sequence[Workload]) -> HostSample:
    """Leave out the subjects that the bench's other processes are: their signals stay."""
    groups = {work.job.path for work in works}
    kept = {key: one for key, one in frame.subjects.items() if one.cgroup in groups}
    return replace(frame, subjects=kept)


@contextmanager
def _sources(works: Sequence[Workload]) -> Iterator[LiveFrames]:
    work = works[0]
    probe = StepProbe(str(work.library), work.symbol, returns=work.returns)
    registry = host_registry("auto")
    registry.register("steps", lambda: StepsSource([probe]), probe)
    with LiveFrames(registry, host_framer((f"/{PARENT}/job*",))) as live:
        yield live


def _facts(
    run: Run, works: Sequence[Workload], injections: Sequence[Injection], began_ns: int
) -> dict[str, Any]:
    impacts = {work.job.path: _impact(work, injections, began_ns) for work in works}
    return {
        "format": FORMAT,
        "name": run.name,
        "workload": run.workload,
        "workers": run.workers,
        "pinned": run.workers > 1,
        "injector": "+".join(run.injectors),
        "class": "+".join(run.causes) or "none",
        "intensity": INTENSITIES[run.intensity] if run.injectors else "",
        "seed": run.seed,
        "subjects": list(impacts),
        "program": works[0].main_program,
        "spans": [injection.document() for injection in injections],
        "impact": {subject: found.document() for subject, found in impacts.items()},
        "machine": machine(),
        "commit": commit(),
        "recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _impact(work: Workload, injections: Sequence[Injection], began_ns: int) -> Impact:
    now = boottime_ns()
    start = min((injection.start_ns for injection in injections), default=now)
    end = max((injection.end_ns for injection in injections), default=now)
    return impact(work.log.between(began_ns, start), work.log.between(start, end))


def _check(schedule: Schedule, works: Sequence[Workload], facts: dict[str, Any]) -> None:
    if schedule.error is not None:
        raise RunRefusedError(f"the injector failed: {schedule.error}") from schedule.error
    for work in works:
        try:
            work.check()
        except RuntimeError as error:
            raise RunRefusedError(str(error)) from error
    for span in facts["spans"]:
        if not span["effect"]["shown"]:
            raise RunRefusedError(f"{span['injector']} shows no effect: {span['effect']}")


def machine() -> dict[str, object]:
    """Facts about the machine that a reader of figures needs."""
    return {
        "kernel": platform.release(),
        "cpu": processor(),
        "cpus": os.cpu_count() or 0,
        "memory_mib": psutil.virtual_memory().total >> 20,
    }
