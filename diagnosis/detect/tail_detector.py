"""Spikes in the tail of one subject's step times.

A step is long above `tail_ratio` times the usual tail. Long steps are weighed by how much likelier
their share of the last seconds is now than usual (a binomial likelihood ratio over windows of
several lengths): one rule serves a hundred steps a second and one in two seconds. The usual tail
follows a speed-up in seconds, a slow-down in half an hour: slow degradation is not learned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import log2
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Steps

from .baseline import Floats, StepBaseline, step_bins
from .detection_settings import DetectionSettings
from .findings import Diagnosis, StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class TailSecond:
    """The steps of one frame, measured by what is usual.

    ended_ns, duration_ns   int64[n] each
    steps     those that ended, and one that will not end
    long_ns   when each long one ended; a frame's end for a stalled one
    """

    at_ns: int
    span_s: float
    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    steps: int
    long_ns: tuple[int, ...]
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last seconds say of the tail.

    nats      log of how much likelier the share of long steps is now than usual
    onset_ns  the long step from which on the steps are likeliest to have changed; the frame's end
              where there is no spike
    lately    the same of the last three seconds alone
    current   the newest second is, by itself
    stalled   a step will not end
    settling  a job begun anew: its first steps are measured by nothing
    likely    a spike where something else makes one likely
    """

    spiking: bool
    nats: float
    onset_ns: int
    lately: float = 0.0
    current: bool = False
    stalled: bool = False
    settling: bool = False
    likely: bool = False


class TailRatios(NamedTuple):
    """log2 of now to usual: quantiles of the step times, and steps a second. NaN: unknown."""

    p10: float
    p50: float
    p99: float
    rate: float


class IncidentGauge:
    """Persistence and impact of one spike.

    Heavy seconds count: those whose tail reaches `incident_ratio` times the usual one. Seconds that
    are not heavy take one back each, so that a spike that flickers needs longer.
    """

    def __init__(self, settings: DetectionSettings, before: StepTimes) -> None:
        self._limit_s = settings.incident_s
        self._ratio = settings.incident_ratio
        self._before = before
        self._heavy_s = 0.0
        self.reached = False

    def take(self, now: StepTimes, stalled: bool, span_s: float) -> bool:
        """Count one frame; True once the spike is an incident, and from then on."""
        heavy = stalled or (now.steps > 0 and now.p99_ms >= self._ratio * self._before.p99_ms)
        self._heavy_s = max(0.0, self._heavy_s + (span_s if heavy else -span_s))
        self.reached = self.reached or self._heavy_s >= self._limit_s
        return self.reached


class StandingSpike:
    """When it began, what was usual before, and what was said of it last.

    enough_nats   evidence in three seconds that keeps it: a third of what it was believed for
    lags_whole    whether all seconds that the lags are read from were there
    calm_frames   how many in a row had nothing unusual
    """

    def __init__(
        self, settings: DetectionSettings, onset_ns: int, before: StepTimes, believed_nats: float
    ) -> None:
        self.onset_ns = onset_ns
        self.enough_nats = believed_nats / 3
        self.before = before
        self.gauge = IncidentGauge(settings, before)
        self.lags_s: Floats | None = None
        self.lags_whole = False
        self.vector: Floats | None = None
        self.last: Diagnosis | None = None
        self.frames = 0
        self.calm_frames = 0


_WINDOWS: Final = (2, 3, 5, 10)
_NEWEST: Final = 3
_SHIFT_REACH_NS: Final = 3_500_000_000
_NS: Final = 1e9
_MS: Final = 1e6
_FEWEST_FOR_SHIFT: Final = 6
_SHIFT: Final = 0.25
"""log2 of the ratio from which the fastest tenth of the steps counts as slower: 1.19. A slow
degradation is never that far from the last minute."""
_LEAST_GAP_S: Final = 0.5
_MISSED_STEPS: Final = 10.0
"""Usual steps for which there was time while none ran: by chance, once in 20,000 times."""
_PRIOR_STEPS: Final = 100.0
_LEAST_USUAL_LONG: Final = 0.002
_MOST_USUAL_LONG: Final = 0.01
"""Above 1.3 times the 99th percentile there is less by definition, unless it degrades."""
_HARDLY: Final = 1e-9
_UNKNOWN: Final = float("nan")
_NOTHING: Final = np.zeros(0, np.int64)


class TailDetector:
    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._recent: deque[TailSecond] = deque(maxlen=max(_WINDOWS))
        self._waiting: deque[TailSecond] = deque()
        self._last_end_ns = self._settled_ns = 0
        self._forget()

    def _forget(self) -> None:
        settings = self._settings
        self._fast = StepBaseline(settings.fade_s, settings.least_steps)
        self._slow = StepBaseline(settings.slow_fade_s, settings.least_steps)
        self._warm_s = 0.0
        self.threshold_ns = self._usual_tail_ns = _UNKNOWN
        self._usual_long_share = settings.usual_long_share

    @property
    def ready(self) -> bool:
        return self.threshold_ns > 0

    def take(self, steps: Steps | None, at_ns: int, span_s: float) -> Tail:
        """Measure one frame's steps; nothing is learned from them yet."""
        self._notice_restart(steps, at_ns)
        second = self._second(steps, at_ns, span_s)
        settling = at_ns < self._settled_ns
        self._recent.append(replace(second, long_ns=(), stalled=False) if settling else second)
        if settling or not self.ready:
            return Tail(False, 0.0, at_ns, settling=settling)
        if not any(earlier.long_ns for earlier in self._recent):
            return Tail(False, 0.0, at_ns)
        settings = self._settings
        weighed = self._weighed()
        nats = max((weighed[n - 1] for n in _WINDOWS if n <= len(weighed)), default=0.0)
        last = list(self._recent)[-settings.persistence_frames :]
        persistent = sum(bool(second.long_ns) for second in last) >= settings.persistent_frames
        spiking = persistent and nats >= settings.evidence_nats
        lately = weighed[_NEWEST - 1] if len(weighed) >= _NEWEST else 0.0
        stalled = self._recent[-1].stalled
        likely = persistent and nats >= settings.told_nats
        onset_ns = self._onset_ns() if spiking or likely else at_ns
        return Tail(spiking, nats, onset_ns, lately, weighed[0] > 0, stalled, likely=likely)

    def shifted(self, since_ns: int) -> bool:
        """Whether all steps since then were longer than in the last minute, the fastest too."""
        durations = self._durations(max(since_ns, self._recent[-1].at_ns - _SHIFT_REACH_NS))
        if durations.size < _FEWEST_FOR_SHIFT:
            return False
        p10, p90 = np.quantile(durations, (0.1, 0.9))
        fastest = log2(p10 / self._fast.quantile_ns(0.1))
        slowest = log2(p90 / self._fast.quantile_ns(0.9))
        return fastest > _SHIFT and fastest > 0.5 * slowest

    def learn(self) -> None:
        self._waiting.append(self._recent[-1])
        if len(self._waiting) > (self._settings.hold_back_frames if self.ready else 0):
            self._absorb(self._waiting.popleft())

    def doubt(self) -> None:
        """Let none of the seconds that still wait count as usual."""
        self._waiting.clear()

    def over(self) -> None:
        """A spike has ended: its long steps begin no other one."""
        whole = [replace(second, long_ns=(), stalled=False) for second in self._recent]
        self._recent = deque(whole, maxlen=self._recent.maxlen)

    def restart(self) -> None:
        """Take the last seconds as the beginning of a new phase."""
        settled = list(self._recent)[-self._settings.shift_settle_frames // 2 :]
        self._forget()
        self._waiting.clear()
        self._recent.clear()
        self._warm_s = self._settings.warmup_s / 2
        for second in settled:
            self._absorb(second)

    def before(self) -> StepTimes:
        """Usual step times; all zero before they are known."""
        if not self.ready:
            return StepTimes(0.0, 0.0, 0)
        p99_ns = self._usual_tail_ns
        median_ns = self._fast.quantile_ns(0.5)
        return StepTimes(median_ns / _MS, p99_ns / _MS, int(self._fast.steps))

    def now(self, since_ns: int) -> StepTimes:
        """Step times since then, as far as they are kept; all zero where none ended."""
        durations = self._durations(since_ns)
        if durations.size == 0:
            return StepTimes(0.0, 0.0, 0)
        p50, p99 = np.quantile(durations, (0.5, 0.99)) / _MS
        return StepTimes(float(p50), float(p99), int(durations.size))

    def ratios(self, since_ns: int) -> TailRatios:
        if not self.ready:
            return TailRatios(*([_UNKNOWN] * 4))
        durations = self._durations(since_ns)
        span_s = sum(second.span_s for second in self._recent if second.at_ns > since_ns)
        expected = self._fast.rate_per_s * span_s
        rate = log2((durations.size + 0.5) / (expected + 0.5)) if span_s else _UNKNOWN
        if durations.size < 2:
            return TailRatios(_UNKNOWN, _UNKNOWN, _UNKNOWN, rate)
        shares = (0.1, 0.5, 0.99)
        usual = [self._fast.quantile_ns(share) for share in shares]
        p10, p50, p99 = np.log2(np.quantile(durations, shares) / usual).tolist()
        return TailRatios(p10, p50, p99, rate)

    def _notice_restart(self, steps: Steps | None, at_ns: int) -> None:
        """Give steps some seconds to settle after a time that no step covers: a job begun anew."""
        if steps is None or steps.ended_ns.size == 0:
            return
        begun_ns = int(steps.ended_ns[0] - steps.duration_ns[0])
        gap_s = (begun_ns - self._last_end_ns) / _NS if self._last_end_ns else 0.0
        self._last_end_ns = int(steps.ended_ns[-1])
        if gap_s >= _LEAST_GAP_S and gap_s * self._fast.rate_per_s >= _MISSED_STEPS:
            self._settled_ns = at_ns + int(self._settings.warmup_s / 2 * _NS)

    def _second(self, steps: Steps | None, at_ns: int, span_s: float) -> TailSecond:
        if steps is None:
            return TailSecond(at_ns, span_s, _NOTHING, _NOTHING, 0, ())
        long_ns = tuple(steps.ended_ns[steps.duration_ns > self.threshold_ns].tolist())
        count = int(steps.duration_ns.size)
        running_ns = steps.running_ns or 0  # silence alone may be idleness
        enough_ns = max(self.threshold_ns, self._settings.stalled_s * _NS)
        stalled = self.ready and running_ns > enough_ns
        if stalled:
            long_ns, count = (*long_ns, at_ns), count + 1
        ended_ns, duration_ns = steps.ended_ns, steps.duration_ns
        return TailSecond(at_ns, span_s, ended_ns, duration_ns, count, long_ns, stalled)

    def _weighed(self) -> list[float]:
        """Give in nats how much likelier long steps are now: newest second, newest two, and on."""
        newest_first = list(reversed(self._recent))
        steps = np.cumsum([second.steps for second in newest_first])
        long = np.cumsum([len(second.long_ns) for second in newest_first])
        share = long / np.maximum(steps, 1)
        enough = share > max(2 * self._usual_long_share, self._settings.least_long_share)
        found: list[float] = np.where(enough, self._nats(share, steps), 0.0).tolist()
        return found

    def _onset_ns(self) -> int:
        """Give the end of the long step at which the steps likeliest changed: a change point."""
        ended = np.concatenate([second.ended_ns for second in self._recent])
        stalled = np.array([second.at_ns for second in self._recent if second.stalled], np.int64)
        ended = np.sort(np.concatenate((ended, stalled)))
        long = np.sort([at_ns for second in self._recent for at_ns in second.long_ns])
        steps = ended.size - np.searchsorted(ended, long)
        share = np.arange(long.size, 0, -1) / steps
        likelier = share > self._usual_long_share
        return int(long[np.where(likelier, self._nats(share, steps), 0.0).argmax()])

    def _nats(self, share: NDArray[np.float64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the log likelihood ratio of shares of long steps to the usual one."""
        usual, share = self._usual_long_share, np.maximum(share, _HARDLY)
        rest = np.maximum(1 - share, _HARDLY)
        return np.asarray(
            steps * (share * np.log(share / usual) + rest * np.log(rest / (1 - usual)))
        )

    def _durations(self, since_ns: int) -> NDArray[np.int64]:
        late = [second for second in self._recent if second.at_ns > since_ns]
        parts = [second.duration_ns[second.ended_ns >= since_ns] for second in late]
        return np.concatenate(parts) if parts else _NOTHING

    def _absorb(self, second: TailSecond) -> None:
        settings = self._settings
        self._warm_s += second.span_s
        if self._warm_s <= settings.warmup_s / 2:  # the first steps are no measure of later ones
            return
        counts = step_bins(second.duration_ns)
        self._fast.add(counts, second.span_s)
        self._slow.add(counts, second.span_s)
        if self._warm_s < settings.warmup_s or self._fast.steps < settings.warmup_steps:
            return
        self._follow(self._fast.quantile_ns(settings.tail_quantile), second.span_s)
        self.threshold_ns = settings.tail_ratio * self._usual_tail_ns
        prior = _PRIOR_STEPS * settings.usual_long_share
        seen = self._slow.above(self.threshold_ns)
        share = (seen + prior) / (self._slow.steps + _PRIOR_STEPS)
        self._usual_long_share = min(max(share, _LEAST_USUAL_LONG), _MOST_USUAL_LONG)

    def _follow(self, tail_ns: float, span_s: float) -> None:
        """Let the usual tail follow the last minute's: down in seconds, up ever more slowly."""
        if not self.ready:
            self._usual_tail_ns = tail_ns
            return
        settings = self._settings
        known_s = 5 * (self._warm_s - settings.fade_s / 2)
        slow_s = min(settings.slow_fade_s, max(settings.fade_s / 2, known_s))
        fade_s = slow_s if tail_ns > self._usual_tail_ns else settings.fade_s / 6
        share = min(1.0, span_s / fade_s)
        self._usual_tail_ns *= (tail_ns / self._usual_tail_ns) ** share
