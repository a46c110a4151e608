"""Frames in, findings out: each subject of a host is usual, in doubt or in a spike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import StepSource
from diagnosis.frames.frame import HostSample, Steps, Subject
from diagnosis.frames.signals import FINE, SIGNALS

from .baseline import (
    CHANNELS,
    INDEX,
    NO_LAGS,
    CgroupNeighbours,
    Channel,
    ChannelPlace,
    FineHistory,
    Floats,
    Readings,
)
from .detection_settings import DetectionSettings
from .features import SubjectSignals, vector_of
from .findings import Cause, Diagnosis, Evidence, Finding, SpikeBegan, SpikeEnded, StepTimes
from .rules import CAUSES, RULES_TITLE, Ranking, RuleVerdict, hand_rules, judge, rank
from .tail_detector import StandingSpike, Tail, TailDetector

MOST: Final = 6
_SPREADS: Final = 3.0
_FINE_PLACE: Final = {name: place for place, name in enumerate(FINE)}


def _telling(cause: Cause) -> dict[int, float]:
    rules = [rule for rule in hand_rules() if rule.cause == cause]
    needed = [tell for rule in rules for group in rule.needs for tell in group]
    tells = [*needed, *(tell for rule in rules for tell in rule.tells)]  # of both, what tells holds
    return {INDEX[tell.channel]: tell.sign for tell in tells if tell.channel in INDEX}


_TELLING: Final = {cause: _telling(cause) for cause in Cause}
_HURTS: Final = np.array(
    [{"up": 1.0, "down": -1.0}.get(SIGNALS[c.signal].hurts, 0.0) for c in CHANNELS]
)


def evidence_for(
    cause: Cause,
    signals: SubjectSignals,
    onset_ns: int,
    lags_s: NDArray[np.float64],
    readings: Readings,
    cgroup: str,
    neighbours: CgroupNeighbours,
) -> tuple[Evidence, ...]:
    """Give the signals that left their baselines: those of the cause first, loudest first."""
    now = signals.now(onset_ns)
    z = signals.baseline.deviation(now)
    z = np.where(np.isnan(z), 0.0, z)
    telling = _TELLING[cause]
    speaks = [i for i, sign in telling.items() if sign * z[i] > _SPREADS]
    speaks.sort(key=lambda i: -abs(z[i]))
    groups = {CHANNELS[i].group for i in telling}
    beside = np.flatnonzero(z * np.where(_HURTS == 0, np.sign(z), _HURTS) > _SPREADS).tolist()
    rest = [i for i in beside if i not in telling]
    rest.sort(key=lambda i: (CHANNELS[i].group not in groups, -abs(z[i])))
    chosen: dict[str, int] = {}
    for i in (*speaks, *rest):
        chosen.setdefault(CHANNELS[i].signal, i)  # another place has shown it already
    return tuple(
        Evidence(
            signal=CHANNELS[i].signal,
            unit=SIGNALS[CHANNELS[i].signal].unit,
            value=float(now[i]),
            baseline=float(signals.baseline.median[i]),
            spread=float(signals.baseline.spread[i]),
            since_ns=signals.since_ns(i),
            lag_ms=_lag_ms(CHANNELS[i], lags_s),
            who=_who(CHANNELS[i], readings, cgroup, neighbours),
            scope=CHANNELS[i].place.value,
        )
        for i in list(chosen.values())[:MOST]
    )


def _lag_ms(channel: Channel, lags_s: NDArray[np.float64]) -> float | None:
    place = _FINE_PLACE.get(channel.signal) if channel.place is ChannelPlace.HOST else None
    unknown = place is None or np.isnan(lags_s[place])
    return None if unknown else round(float(lags_s[place]) * 1000, 1)


def _who(channel: Channel, readings: Readings, cgroup: str, neighbours: CgroupNeighbours) -> str:
    if channel.place is ChannelPlace.GPU:
        return ""
    behind = SIGNALS[channel.signal].behind
    if channel.place is ChannelPlace.OWN and not behind:
        return ""
    return neighbours.grown(readings, cgroup, behind or channel.signal)


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
    def __init__(self, settings: DetectionSettings) -> None:
        self.settings = settings
        self.fine = FineHistory()
        self.neighbours = CgroupNeighbours(settings.cgroups, settings.forget_s)


class SubjectWatch:
    def __init__(self, key: str, host: HostContext) -> None:
        self._key, self._host, self._settings = key, host, host.settings
        self._tail = TailDetector(host.settings)
        self._signals = SubjectSignals(host.settings)
        self._source: StepSource | None = None
        self._doubted_frames = self._shifted_frames = 0
        self.spike: StandingSpike | None = None
        self.seen_ns = 0

    @property
    def calm(self) -> bool:
        """Whether nothing is unusual: other subjects' neighbours may be learned from."""
        return self.spike is None and self._doubted_frames == 0

    @property
    def usual(self) -> StepTimes | None:
        return self._tail.before() if self._tail.ready else None

    def handle(self, subject: Subject, steps: Steps | None, readings: Readings) -> list[Finding]:
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
        if self.spike is None:
            return []
        return [SpikeEnded(self._key, self.spike.onset_ns, at_ns, self.spike.last)]

    def _believed_nats(self, tail: Tail) -> float | None:
        """Give how much evidence was enough for a spike, less where something backs it; or None."""
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
        ranking, last = rank(verdict), spike.last
        said = None if last is None else (last.cause, last.incident)
        since_ns = frame.boottime_ns - (0 if last is None else last.at_ns)
        if said == (ranking.cause, incident) and since_ns < self._settings.repeat_s * _NS:
            return []
        spike.last = self._diagnosis(spike, ranking, now, incident, subject, readings)
        return [spike.last]

    def _again(
        self, spike: StandingSpike, last: Diagnosis, incident: bool, now: StepTimes, at_ns: int
    ) -> list[Finding]:
        """Say again what became an incident: a newest second without long steps says nothing."""
        if incident == last.incident:
            return []
        spike.last = replace(last, at_ns=at_ns, now=now, incident=incident)
        return [spike.last]

    def _gave_up(self, spike: StandingSpike, verdict: RuleVerdict) -> bool:
        settings = self._settings
        if verdict.strongest >= settings.suspicion:
            return False
        long_enough = spike.frames >= settings.shift_settle_frames + 10
        shifted = long_enough and self._tail.shifted(spike.onset_ns)
        return shifted or spike.frames >= settings.give_up_frames

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
    if steps is None or steps.source is not StepSource.RHYTHM or not _idle(subject):
        return steps
    return replace(steps, running_ns=None)


def _idle(subject: Subject) -> bool:
    """Whether all processes are gone or sleep; a shell that waits for a job wakes now and then."""
    switches = subject.signals.get("switches_per_s")
    if switches is None:
        return subject.signals.get("cpu_ms_per_s") == 0
    still = subject.signals.get("cpu_ms_per_s", 0.0) < _IDLE_CPU_MS_PER_S
    return switches == 0 or (switches < _IDLE_SWITCHES_PER_S and still)


Ruler = Literal["measured", "rhythm"]


class Diagnoser:
    """Finds spikes and their causes; no clock, file or socket inside.

    source     `rhythm`: the rhythm is used even where steps are measured
    """

    def __init__(
        self,
        settings: DetectionSettings = DetectionSettings(),  # noqa: B008 -- frozen
        source: Ruler = "measured",
    ) -> None:
        self._settings = settings
        self._host = HostContext(settings)
        self._source = source
        self._watches: dict[str, SubjectWatch] = {}

    def handle(self, frame: HostSample) -> list[Finding]:
        """Take one second of the host; frames come in order of time."""
        readings = Readings.of(frame)
        self._host.fine.take(frame)
        findings: list[Finding] = []
        for key, subject in frame.subjects.items():
            watch = self._watches.get(key)
            if watch is None and len(self._watches) < self._settings.subjects:
                watch = self._watches[key] = SubjectWatch(key, self._host)
            if watch is not None:
                findings += watch.handle(subject, self.steps_of(subject), readings)
        if all(watch.calm for watch in self._watches.values()):
            self._host.neighbours.learn(readings)
        limit_ns = frame.boottime_ns - int(self._settings.forget_s * _NS)
        for key in [key for key, watch in self._watches.items() if watch.seen_ns < limit_ns]:
            findings += self._watches.pop(key).gone(frame.boottime_ns)
        return findings

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(self._watches)

    def usual(self, key: str) -> StepTimes | None:
        watch = self._watches.get(key)
        return watch.usual if watch is not None else None

    @property
    def vectors(self) -> Mapping[str, Floats]:
        """What spikes that stand were last judged by, by subject: of their last unusual second."""
        spikes = {key: watch.spike for key, watch in self._watches.items()}
        return {
            key: spike.vector
            for key, spike in spikes.items()
            if spike is not None and spike.vector is not None
        }

    def steps_of(self, subject: Subject) -> Steps | None:
        """Give the steps that a subject is judged by: measured where they are, else its rhythm."""
        if self._source == "measured" and subject.steps is not None:
            return subject.steps
        return subject.rhythm
