"""Governor periods on a running machine: what each cost, what comes next, what is attached now.

The agent's loop drains once a second; a thread switches links at the edges of windows. The stall of
a place is its part of the attaching call, by probed places: meanwhile a thread of the target that
faults or maps memory waits. Grace periods of detaching stop nobody, as measured.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from collectors.boot_clock import boottime_ns
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from .costs import CALIBRATION_FILE, CpuClocks, HitCosts, ProbeCost
from .found_files import FileFound
from .governor import Governor, Period, ProbeLoad
from .probe_plan import Attachment, few
from .readout import ProbeDrain

_MOST_WAITING: Final = 64
"""Drains that nobody fetched: a period's end makes one, the agent's loop fetches each second."""
_LEAST_SHARE, _LARGEST_BIAS = 1e-6, 2.0


class Drains(Protocol):
    def drain(self, now_ns: int, /) -> ProbeDrain: ...


@dataclass(frozen=True, slots=True)
class PeriodEnd:
    """What a period was; `worst`: who paid most, and its share of wall time, stalls included."""

    period: Period
    length_ns: int
    attached: Mapping[FileGroup, float]
    worst: tuple[ProcessKey, float] | None
    lost: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Collected:
    """One drain, in one period.

    shares      with which probability a call of each group was seen
    attached    groups of which every call was seen, from the drain's begin to its end
    """

    drain: ProbeDrain
    period: Period
    shares: Mapping[ProbeGroup, float]
    ended: PeriodEnd | None
    attached: frozenset[ProbeGroup]
    cpu_ns: Mapping[ProcessKey, int | None] = field(default_factory=dict)
    paid_ns: Mapping[ProcessKey, float] = field(default_factory=dict)
    calibrated: bool = True

    @property
    def cut_off(self) -> bool:
        ended = self.ended
        return ended is not None and ended.length_ns < self.period.end_ns - self.period.begin_ns


@dataclass(slots=True)
class _Book:
    attached_ns: defaultdict[FileGroup, int] = field(default_factory=lambda: defaultdict(int))
    hits: defaultdict[FileGroup, dict[ProcessKey, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    spent: dict[FileGroup, ProbeCost] = field(default_factory=dict)
    spent_ns: defaultdict[ProcessKey, float] = field(default_factory=lambda: defaultdict(float))
    lost: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, drain: ProbeDrain, costs: HitCosts) -> dict[ProcessKey, float]:
        paid_ns: defaultdict[ProcessKey, float] = defaultdict(float)
        priced = costs.spent(drain)
        for place, cost in priced.items():
            self.spent.setdefault(place, ProbeCost()).merge(cost)
        for place, duty in drain.duty.items():
            self.attached_ns[place] += round(duty * drain.span_ns)
        for (place, process), hits in drain.hits.items():
            of = self.hits[place]
            of[process] = of.get(process, 0) + hits
            each = priced.get(place)
            if each is not None and each.hits:
                paid_ns[process] += hits * each.cost_ns / each.hits
        for process, ns in paid_ns.items():
            self.spent_ns[process] += ns
        for what, count in drain.lost.items():
            self.lost[what] += count
        return dict(paid_ns)


class PeriodKeeper:
    """One for the machine."""

    def __init__(
        self,
        drains: Drains,
        governor: Governor,
        costs: HitCosts,
        places: Callable[[], Mapping[FileGroup, int]],
        clocks: CpuClocks | None = None,
    ) -> None:
        self._drains, self._governor, self._costs, self._places = drains, governor, costs, places
        self._clocks = clocks or CpuClocks()
        self._attached = frozenset(ProbeGroup)
        self._lock = threading.Lock()
        self._book = _Book()
        self._bias = 1.0
        self._waiting: list[Collected] = []
        self.period = governor.period(0)

    def start(self, now_ns: int) -> None:
        """Throw away what was counted so far and begin the first period."""
        with self._lock:
            self._drains.drain(now_ns)
            self._clocks.take()
            self._book = _Book()
            self.period = self._governor.period(now_ns)

    def take(self, now_ns: int) -> tuple[list[Collected], bool]:
        """Drain; give everything since the last call, and whether the period changed here."""
        with self._lock:
            changed = self._collect(now_ns)
            taken, self._waiting = self._waiting, []
            return taken, changed

    def wanted(self, now_ns: int) -> tuple[frozenset[ProbeGroup], int]:
        """Give the groups to be attached now, and when that changes; end a period that is over."""
        with self._lock:
            if now_ns >= self.period.end_ns:
                self._collect(now_ns)
            return self.period.attached(now_ns), self.period.next_change_ns(now_ns)

    def switching(self, wanted: frozenset[ProbeGroup], now_ns: int) -> bool:
        """Tell whether groups are to be switched, and end a drain here; `switched` follows."""
        with self._lock:
            if wanted == self._attached:
                return False
            self._collect(now_ns, ends=False)
            self._attached &= wanted
            return True

    def switched(self, wanted: frozenset[ProbeGroup], now_ns: int) -> None:
        with self._lock:
            self._collect(now_ns, ends=False)
            self._attached = wanted

    def forget(self, process: ProcessKey) -> None:
        with self._lock:
            self._clocks.forget(process)

    def _collect(self, now_ns: int, *, ends: bool = True) -> bool:
        """Drain."""
        drain = _without_calibration(self._drains.drain(now_ns))
        paid_ns = self._book.add(drain, self._costs)
        self._clocks.note(paid_ns)
        cpu_ns = self._clocks.take()
        period = self.period
        over = ends and self._governor.over(period, self._book.spent_ns)
        shares = {group: self._share(group) for group in ProbeGroup}
        ended = None
        if over or (ends and now_ns >= period.end_ns):
            ended = self._turn(now_ns)
        sure = self._costs.calibrated
        self._waiting.append(
            Collected(drain, period, shares, ended, self._attached, cpu_ns, paid_ns, sure)
        )
        del self._waiting[:-_MOST_WAITING]
        return ended is not None

    def _share(self, group: ProbeGroup) -> float:
        share = self.period.share(group)
        if group in self.period.steady or share <= 0.0:
            return share
        return min(max(share * self._bias, _LEAST_SHARE), 1.0)

    def _turn(self, now_ns: int) -> PeriodEnd:
        period, book = self.period, self._book
        places = self._places()
        length_ns = max(now_ns - period.begin_ns, 1)
        loads = [self._load(place, stall_ns) for place, stall_ns in places.items()]
        attached = {place: min(ns / length_ns, 1.0) for place, ns in book.attached_ns.items()}
        self._learn_bias(period, attached, now_ns)
        worst = self._worst(places, length_ns)
        self._book = _Book()
        self.period = self._governor.period(now_ns, loads)
        return PeriodEnd(period, length_ns, attached, worst, dict(book.lost))

    def _load(self, place: FileGroup, stall_ns: int) -> ProbeLoad:
        spent = self._book.spent.get(place)
        each_ns = spent.cost_ns / spent.hits if spent and spent.hits else 0.0
        return ProbeLoad(
            place,
            self._book.hits.get(place, {}),
            self._book.attached_ns.get(place, 0),
            each_ns or self._costs.of(place.group),
            stall_ns,
        )

    def _learn_bias(self, period: Period, attached: Mapping[FileGroup, float], now_ns: int) -> None:
        """Follow the ratio of attached time to planned time; a period cut off tells nothing."""
        shares = [share for place, share in attached.items() if place.group in period.in_turns]
        if not shares or period.duty <= 0.0 or now_ns < period.end_ns:
            return
        ratio = sum(shares) / len(shares) / period.duty
        ratio = min(max(ratio, 1.0 / _LARGEST_BIAS), _LARGEST_BIAS)
        self._bias += 0.25 * (ratio - self._bias)

    def _worst(
        self, places: Mapping[FileGroup, int], length_ns: int
    ) -> tuple[ProcessKey, float] | None:
        if not self._book.spent_ns:
            return None
        process = max(self._book.spent_ns, key=lambda place: self._book.spent_ns[place])
        switched = self.period.in_turns
        stalls = sum(ns for place, ns in places.items() if place.group in switched)
        return process, (self._book.spent_ns[process] + stalls) / length_ns


def _without_calibration(drain: ProbeDrain) -> ProbeDrain:
    """Leave out this agent's own calls of the functions that it measures hits on."""
    if not any(place.file == CALIBRATION_FILE for place in drain.duty):
        return drain
    return replace(
        drain,
        launches=tuple(row for row in drain.launches if row.file != CALIBRATION_FILE),
        calls=tuple(row for row in drain.calls if row.file != CALIBRATION_FILE),
        errors=tuple(row for row in drain.errors if row.file != CALIBRATION_FILE),
        duty={
            place: share for place, share in drain.duty.items() if place.file != CALIBRATION_FILE
        },
        hits={key: hits for key, hits in drain.hits.items() if key[0].file != CALIBRATION_FILE},
    )


_SMOOTHING: Final = 0.5
_FADING: Final = 0.9

_SECOND: Final = 1_000_000_000
_LONGEST_WAIT_S: Final = 15.0


class Links(Protocol):
    @property
    def attached(self) -> frozenset[FileGroup]: ...
    def attach(self, file: int, path: str, attachments: Sequence[Attachment], /) -> None: ...
    def detach_all(self, file_groups: Collection[FileGroup], /) -> None: ...


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    attachments: tuple[Attachment, ...]

    def groups(self) -> frozenset[ProbeGroup]:
        return frozenset(attachment.group for attachment in self.attachments)


class ProbeAttacher:
    def __init__(
        self,
        links: Links,
        clock: Callable[[], int] = time.perf_counter_ns,
        *,
        few_places: bool = False,
    ) -> None:
        self._links, self._clock, self._few_places = links, clock, few_places
        self._left_out: set[ProbeGroup] = set()
        self._files: dict[int, _File] = {}
        self._wanted = frozenset(ProbeGroup)
        self._refused: set[FileGroup] = set()
        self._stalls: dict[FileGroup, int] = {}
        self._one_at_a_time = threading.Lock()
        self._noting = threading.Lock()
        """Of the stalls alone: by perf events the other is held while places are let go, for as
        long as half a minute, and the agent's loop must not wait for it."""

    def add(self, found: FileFound) -> None:
        with self._one_at_a_time:
            self._files[found.file] = _File(found.open_path, self._chosen(found))
            self._attach(found.file, self._wanted)

    def remove(self, file: int) -> None:
        with self._one_at_a_time:
            self._files.pop(file, None)
            self._links.detach_all(
                [file_group for file_group in self._links.attached if file_group.file == file]
            )
            self._refused = {file_group for file_group in self._refused if file_group.file != file}
            with self._noting:
                for place in [place for place in self._stalls if place.file == file]:
                    del self._stalls[place]

    def follow(self, wanted: frozenset[ProbeGroup]) -> None:
        """Attach and detach until these groups are attached; new files get their turn between."""
        with self._one_at_a_time:
            self._wanted = wanted
            surplus = [
                file_group
                for file_group in self._links.attached
                if file_group.file in self._files and file_group.group not in wanted
            ]
            if surplus:
                self._links.detach_all(surplus)
        for file in self.files:
            with self._one_at_a_time:
                if file in self._files:
                    self._attach(file, wanted)

    @property
    def left_out(self) -> frozenset[ProbeGroup]:
        """Groups that files have, and that are probed in none."""
        probed = {group for file in dict(self._files).values() for group in file.groups()}
        return frozenset(self._left_out.copy() - probed)

    def _chosen(self, found: FileFound) -> tuple[Attachment, ...]:
        planned = found.plan.attachments
        if not self._few_places:
            return planned
        taken = sum(len(one.offsets) for file in self._files.values() for one in file.attachments)
        chosen = few(planned, taken)
        self._left_out |= {one.group for one in planned} - {one.group for one in chosen}
        return chosen

    @property
    def files(self) -> tuple[int, ...]:
        return tuple(self._files)

    def places(self) -> dict[FileGroup, int]:
        """Give each place's stall, once a period."""
        with self._noting:
            if self._few_places:  # what was dear on a busy machine is tried again in time
                for place in self._stalls.keys() - self._links.attached:
                    self._stalls[place] = round(self._stalls[place] * _FADING)
            return {
                FileGroup(file, group): self._stalls.get(FileGroup(file, group), 0)
                for file, known in dict(self._files).items()
                for group in known.groups()
            }

    def _attach(self, file: int, wanted: frozenset[ProbeGroup]) -> None:
        """Attach the groups that are missing, together: a call's entry and return begin at once."""
        attached = self._links.attached
        missing = [
            attachment
            for attachment in self._files[file].attachments
            if attachment.group in wanted
            and FileGroup(file, attachment.group) not in attached
            and FileGroup(file, attachment.group) not in self._refused
        ]
        if not missing:
            return
        begun_ns = self._clock()
        try:
            self._links.attach(file, self._files[file].path, missing)
        except SourceUnavailable:
            self._refused |= {FileGroup(file, attachment.group) for attachment in missing}
            return
        self._note_stall(file, missing, self._clock() - begun_ns)

    def _note_stall(self, file: int, attached: Sequence[Attachment], took_ns: int) -> None:
        whole = sum(len(attachment.offsets) for attachment in attached)
        taken: Counter[FileGroup] = Counter()
        for attachment in attached:
            taken[FileGroup(file, attachment.group)] += took_ns * len(attachment.offsets) // whole
        with self._noting:
            for place, took in taken.items():
                before = self._stalls.get(place, took)
                self._stalls[place] = round(before + _SMOOTHING * (took - before))


class SwitchingThread:
    """Sleeps until the next edge; calibrates once, beside, when there is a probed file."""

    def __init__(
        self, keeper: PeriodKeeper, attacher: ProbeAttacher, calibrate: Callable[[], None]
    ) -> None:
        self._keeper, self._attacher = keeper, attacher
        self._calibration = threading.Thread(
            target=calibrate, name="probe-calibration", daemon=True
        )
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="probe-switching", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether it runs; where it does not, nobody keeps the probes within their budget."""
        return self._thread.is_alive()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        for thread in (self._thread, self._calibration):
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wanted, next_ns = self._keeper.wanted(boottime_ns())
            switching = self._keeper.switching(wanted, boottime_ns())
            self._attacher.follow(wanted)
            if switching:
                self._keeper.switched(wanted, boottime_ns())
            if not self._calibration.ident and self._attacher.files:
                self._calibration.start()
            wait_s = min((next_ns - boottime_ns()) / _SECOND, _LONGEST_WAIT_S)
            if wait_s > 0.0 and not self._stopping:
                self._wake.wait(wait_s)
