"""One subject: usual, in doubt, or in a spike; what each frame finds of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from collectors.records.activity import StepSource
from diagnosis.frames.frame import Steps, Subject

from .baseline import NO_LAGS, CgroupNeighbours, FineHistory
from .channels import INDEX, Floats, Readings
from .detection_settings import DetectionSettings
from .evidence import evidence_for
from .features import SubjectSignals, vector_of
from .findings import Cause, Diagnosis, Finding, SpikeBegan, SpikeEnded, StepTimes
from .rules import CAUSES, RULES_TITLE, Ranking, RuleVerdict, judge, rank
from .spike import StandingSpike, Tail
from .tail_detector import TailDetector

_NS: Final = 1_000_000_000
_OWN_WRITES: Final = INDEX["own.block_write_bytes_per_s"]
_DISK_IO: Final = CAUSES.index(Cause.DISK_IO)
_HARDWARE: Final = CAUSES.index(Cause.GPU_HARDWARE_FAULT)
_SURE: Final = 0.95
"""Only an XID, an uncorrected error or the like of the subject's own GPU is as loud: what the host
tells of any GPU is not."""
_OTHER_WRITES: Final = INDEX["other.block_write_bytes_per_s"]
_IDLE_SWITCHES_PER_S: Final = 2.0
_IDLE_CPU_MS_PER_S: Final = 1.0
"""Below both nobody works: a rhythm is heard from 5 turns on a CPU a second."""


class HostContext:
    """What all subjects of a host share: limits, fine history, neighbours."""

    def __init__(self, settings: DetectionSettings) -> None:
        self.settings = settings
        self.fine = FineHistory()
        self.neighbours = CgroupNeighbours(settings.cgroups, settings.forget_s)


class SubjectWatch:
    """State of one subject."""

    def __init__(self, key: str, host: HostContext) -> None:
        settings = host.settings
        self._key = key
        self._host = host
        self._settings = settings
        self._tail = TailDetector(settings)
        self._signals = SubjectSignals(settings)
        self._source: StepSource | None = None
        self._doubted_frames = 0
        self._shifted_frames = 0
        self.spike: StandingSpike | None = None
        self.seen_ns = 0

    @property
    def calm(self) -> bool:
        """Whether nothing is unusual: other subjects' neighbours may be learned from."""
        return self.spike is None and self._doubted_frames == 0

    @property
    def usual(self) -> StepTimes | None:
        """Usual step times; None before they are known."""
        return self._tail.before() if self._tail.ready else None

    def handle(self, subject: Subject, steps: Steps | None, readings: Readings) -> list[Finding]:
        """Take one frame of this subject."""
        frame = readings.frame
        self.seen_ns = frame.boottime_ns
        steps = _without_idleness(steps, subject)
        source = steps.source if steps is not None else self._source
        if self._source is not None and source is not self._source:
            self._tail = TailDetector(self._settings)  # another ruler: nothing to compare with
        self._source = source
        self._signals.take(readings.of_subject(subject), frame.boottime_ns)
        tail = self._tail.take(steps, frame.boottime_ns, frame.span_ns / _NS)
        if self.spike is not None:
            return self._in_spike(self.spike, subject, tail, readings)
        believed_nats = self._believed_nats(tail)
        if believed_nats is not None:
            return self._begin(believed_nats, subject, tail, readings)
        self._learn(tail)
        return []

    def gone(self, at_ns: int) -> list[Finding]:
        """The subject is forgotten."""
        if self.spike is None:
            return []
        return [SpikeEnded(self._key, self.spike.onset_ns, at_ns, self.spike.last)]

    def _believed_nats(self, tail: Tail) -> float | None:
        """Give how much evidence was enough to call the long steps a spike; None: they are none.

        Less is enough where something tells of a cause.
        """
        settings = self._settings
        if tail.spiking and self._believes(tail):
            return settings.evidence_nats
        if not tail.likely:
            return None
        strengths = self._strengths(tail.onset_ns)
        if strengths[_HARDWARE] >= _SURE:
            return settings.told_nats
        if tail.spiking or tail.nats < settings.backed_nats:
            return None
        return settings.backed_nats if strengths.max() >= settings.backing else None

    def _believes(self, tail: Tail) -> bool:
        """Whether long steps are a spike, not the subject's own doing."""
        writes, shifted = self._own_writes(tail.onset_ns), self._tail.shifted(tail.onset_ns - 1)
        if not (writes or shifted):
            self._shifted_frames = 0
            return True
        if self._strengths(tail.onset_ns).max() >= self._settings.suspicion:
            return True
        if not shifted:
            return False
        self._shifted_frames += 1
        if self._shifted_frames >= self._settings.shift_settle_frames:
            self._new_phase()
        return False

    def _strengths(self, onset_ns: int) -> Floats:
        """Give how strongly each cause is told of; disk I/O of the subject's own is none."""
        strengths = judge(self._vector(onset_ns, None)).strengths
        if self._own_writes(onset_ns):
            strengths[_DISK_IO] = 0.0
        return strengths

    def _own_writes(self, onset_ns: int) -> bool:
        """Whether the subject itself began to write much, and others did not: a checkpoint."""
        now = self._signals.now(onset_ns)
        z = self._signals.baseline.deviation(now)
        own, other = z[_OWN_WRITES], z[_OTHER_WRITES]
        return bool(own > self._settings.own_write_spreads and not other > own / 4)

    def _new_phase(self) -> None:
        self._tail.restart()
        self._signals.restart(self._settings.shift_settle_frames // 2)
        self._shifted_frames = self._doubted_frames = 0

    def _learn(self, tail: Tail) -> None:
        settings = self._settings
        if tail.settling:
            self._tail.doubt()
            self._signals.doubt()
            return
        doubtful = tail.spiking or tail.nats > settings.evidence_nats / 2
        if doubtful and self._doubted_frames < settings.doubt_frames:
            self._doubted_frames += 1
            self._tail.doubt()
            self._signals.doubt()
            return
        if not doubtful:
            self._doubted_frames = 0
        self._tail.learn()
        self._signals.learn()

    def _begin(
        self, believed_nats: float, subject: Subject, tail: Tail, readings: Readings
    ) -> list[Finding]:
        at_ns = readings.frame.boottime_ns
        self.spike = StandingSpike(
            self._settings, tail.onset_ns, self._tail.before(), believed_nats
        )
        self._tail.doubt()
        self._signals.doubt()
        self._doubted_frames = self._shifted_frames = 0
        began = SpikeBegan(
            self._key, tail.onset_ns, at_ns, self._source or StepSource.RHYTHM, self.spike.before,
            self._tail.now(tail.onset_ns),
        )  # fmt: skip
        return [began, *self._in_spike(self.spike, subject, tail, readings)]

    def _in_spike(
        self, spike: StandingSpike, subject: Subject, tail: Tail, readings: Readings
    ) -> list[Finding]:
        frame = readings.frame
        spike.frames += 1
        fresh = tail.lately >= spike.enough_nats or spike.frames == 1
        spike.calm_frames = 0 if fresh else spike.calm_frames + 1
        now = self._tail.now(max(spike.onset_ns, frame.boottime_ns - 3 * _NS))
        incident = spike.gauge.take(now, tail.stalled, frame.span_ns / _NS)
        if spike.calm_frames >= self._settings.calm_frames:
            self.spike = None
            self._tail.over()
            return [SpikeEnded(self._key, spike.onset_ns, frame.boottime_ns, spike.last)]
        if spike.calm_frames:
            return []  # nothing new is said of a spike that may be over
        if spike.last is not None and not tail.current:
            return self._again(spike, spike.last, incident, now, frame.boottime_ns)
        spike.vector = self._vector(spike.onset_ns, spike)
        verdict = judge(spike.vector)
        if self._gave_up(spike, verdict):
            self.spike = None
            self._new_phase()
            return [SpikeEnded(self._key, spike.onset_ns, frame.boottime_ns, spike.last)]
        ranking = rank(verdict)
        if not self._says(spike, ranking, incident, frame.boottime_ns):
            return []
        spike.last = self._diagnosis(spike, ranking, now, incident, subject, readings)
        return [spike.last]

    def _again(
        self, spike: StandingSpike, last: Diagnosis, incident: bool, now: StepTimes, at_ns: int
    ) -> list[Finding]:
        """Say what was said before, where it has become an incident.

        The newest second has no long step: its signals may be usual again, and tell nothing.
        """
        if incident == last.incident:
            return []
        spike.last = replace(last, at_ns=at_ns, now=now, incident=incident)
        return [spike.last]

    def _gave_up(self, spike: StandingSpike, verdict: RuleVerdict) -> bool:
        settings = self._settings
        quiet = verdict.strongest < settings.suspicion
        if not quiet:
            return False
        long_enough = spike.frames >= settings.shift_settle_frames + 10
        return spike.frames >= settings.give_up_frames or (
            long_enough and self._tail.shifted(spike.onset_ns)
        )

    def _says(self, spike: StandingSpike, ranking: Ranking, incident: bool, at_ns: int) -> bool:
        last = spike.last
        if last is None or ranking.cause != last.cause or incident != last.incident:
            return True
        return at_ns - last.at_ns >= self._settings.repeat_s * _NS

    def _vector(self, onset_ns: int, spike: StandingSpike | None) -> Floats:
        lags = self._lags(spike) if spike is not None else NO_LAGS
        return vector_of(self._signals, onset_ns, self._tail.ratios(onset_ns), lags)

    def _lags(self, spike: StandingSpike) -> Floats:
        if spike.lags_s is None or not spike.lags_whole:
            spike.lags_s = self._host.fine.lags_s(spike.onset_ns)
            spike.lags_whole = spike.frames >= 4  # all that they look at is there
        return spike.lags_s

    def _diagnosis(
        self,
        spike: StandingSpike,
        ranking: Ranking,
        now: StepTimes,
        incident: bool,
        subject: Subject,
        readings: Readings,
    ) -> Diagnosis:
        evidence = evidence_for(
            ranking.cause, self._signals, spike.onset_ns, self._lags(spike), readings,
            subject.cgroup, self._host.neighbours,
        )  # fmt: skip
        return Diagnosis(
            subject=self._key,
            cause=ranking.cause,
            confidence=ranking.ranked[0][1],
            ranked=ranking.ranked,
            unlike=ranking.unlike,
            onset_ns=spike.onset_ns,
            at_ns=readings.frame.boottime_ns,
            source=self._source or StepSource.RHYTHM,
            before=spike.before,
            now=now,
            evidence=evidence,
            model=RULES_TITLE,
            incident=incident,
        )


def _without_idleness(steps: Steps | None, subject: Subject) -> Steps | None:
    """Take no age of a step from the rhythm of processes that do nothing: they may have ended."""
    if steps is None or steps.source is not StepSource.RHYTHM:
        return steps
    return replace(steps, running_ns=None) if _idle(subject) else steps


def _idle(subject: Subject) -> bool:
    """Whether all processes of a subject are gone, or sleep.

    A shell that waits for a job that has ended wakes now and then, and is no job that starves.
    """
    switches = subject.signals.get("switches_per_s")
    if switches is None:
        return subject.signals.get("cpu_ms_per_s") == 0
    still = subject.signals.get("cpu_ms_per_s", 0.0) < _IDLE_CPU_MS_PER_S
    return switches == 0 or (switches < _IDLE_SWITCHES_PER_S and still)
