"""The parts of the probe source on made drains: periods, switching, records, settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from collectors.binaries.elf_file import EntryClass
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_calls.activity_records import ActivityRecords, GpuPlaces, Named
from collectors.gpu_calls.call_records import CallRecords
from collectors.gpu_calls.costs import ASSUMED, CALIBRATION_FILE, HitCosts
from collectors.gpu_calls.found_files import FileFound
from collectors.gpu_calls.governor import Governor, GovernorSettings
from collectors.gpu_calls.gpu_probes import governor_state
from collectors.gpu_calls.periods import Collected, PeriodKeeper, ProbeAttacher
from collectors.gpu_calls.probe_plan import Attachment, FilePlan
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.readout import CallRow, CollectiveRow, CopyRow, LaunchRow, ProbeDrain
from collectors.interface import SourceUnavailable
from collectors.records.activity import GpuCoverage, KernelActivity, Observation
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    CountedCalls,
    Direction,
    FileGroup,
    GpuCalls,
    ProbeGroup,
    ProcessLabels,
)
from wire.catalogue import Catalogue

SECOND = 10**9
P, Q = ProcessKey(41, 1_000_000_000), ProcessKey(42, 2_000_000_000)
TABLE = ProbeTable.load()
CATALOGUE = Catalogue.load()
NAMES = {(P, 1): Named("a_gemm", "gemm"), (P, 2): Named("a_norm", "norm")}
NAMES[Q, 1] = Named("left_out", "gemm")
LAUNCH = FileGroup(1, ProbeGroup.LAUNCH)


def launches(count: int, kernel: int = 1, process: ProcessKey = P) -> LaunchRow:
    return LaunchRow(process, 1, kernel, "cudart.launch", count, 0, 0, 0)


def call(name: str, count: int, wait_ns: int = 0, file: int = 1) -> CallRow:
    return CallRow(P, file, name, count, 0, count, 0, wait_ns, 0)


@dataclass
class Drains:
    """Hits of one process on one place at a rate while it is attached, as a loader tells them."""

    rate: float
    duty: float = 1.0
    at_ns: int = 0

    def drain(self, now_ns: int) -> ProbeDrain:
        begun_ns, self.at_ns = self.at_ns, now_ns
        span_ns = max(now_ns - begun_ns, 1)
        count = round(self.rate * self.duty * span_ns / SECOND)
        return ProbeDrain(
            begun_ns, span_ns, (launches(count),), (call("cudart.launch", count),),
            duty={LAUNCH: self.duty}, hits={(LAUNCH, P): count},
        )  # fmt: skip


def keeper(drains: Drains) -> PeriodKeeper:
    governor = Governor(GovernorSettings(budget=0.005), lambda below: below // 2)
    made = PeriodKeeper(drains, governor, HitCosts(TABLE), lambda: {LAUNCH: 1_000_000})
    made.start(0)
    return made


def test_periods_end_on_time_and_keep_what_was_counted() -> None:
    kept = keeper(Drains(100.0))
    groups, until_ns = kept.wanted(SECOND)
    assert groups == frozenset(ProbeGroup)
    assert until_ns == 5 * SECOND
    first, changed = kept.take(2 * SECOND)
    assert not changed
    assert [one.ended for one in first] == [None]
    kept.wanted(5 * SECOND)  # the switching thread ends the period
    taken, changed = kept.take(6 * SECOND)
    assert not changed
    assert [one.drain.span_ns for one in taken] == [3 * SECOND, SECOND]
    ended = taken[0].ended
    assert ended is not None
    assert ended.length_ns == 5 * SECOND
    assert ended.attached[LAUNCH] == pytest.approx(1.0)
    assert ended.worst is not None
    cost = ASSUMED[EntryClass.EMULATED]
    assert ended.worst[1] == pytest.approx(100 * cost.entry_ns / SECOND, rel=1e-3)
    state = governor_state(ended, kept.period, 0.005, 1)
    assert (state.worst, state.duty, state.dropped) == (P, 1.0, {})


def test_period_of_a_burst_ends_at_the_next_drain() -> None:
    kept = keeper(Drains(200_000.0))
    taken, changed = kept.take(SECOND)
    assert changed
    assert taken[0].cut_off
    assert taken[0].ended is not None
    assert taken[0].ended.length_ns == SECOND
    assert ProbeGroup.LAUNCH not in kept.period.steady


def test_calibration_is_nobodys_cost_and_no_record() -> None:
    drains = Drains(100.0)
    kept = keeper(drains)
    drain = drains.drain

    def with_calibration(now_ns: int) -> ProbeDrain:
        own, place = drain(now_ns), FileGroup(CALIBRATION_FILE, ProbeGroup.LAUNCH)
        return replace(
            own,
            launches=(*own.launches, replace(launches(10**6), file=CALIBRATION_FILE)),
            calls=(*own.calls, call("cudart.launch", 10**6, file=CALIBRATION_FILE)),
            duty={**own.duty, place: 0.3},
            hits={**own.hits, (place, Q): 10**6},
        )

    drains.drain = with_calibration  # type: ignore[method-assign]
    (one,), changed = kept.take(SECOND)
    assert not changed
    assert [row.file for row in one.drain.launches] == [1]
    assert one.drain.duty.keys() == {LAUNCH}
    kept.wanted(5 * SECOND)
    ended = kept.take(6 * SECOND)[0][0].ended
    assert ended is not None
    assert ended.worst is not None
    assert ended.worst[0] == P


def test_shares_follow_what_switching_makes_of_the_plan() -> None:
    drains = Drains(20_000.0)
    kept = keeper(drains)
    now_ns, shares = 0, []
    for _ in range(12):
        now_ns = kept.period.end_ns
        drains.duty = 0.8 * kept.period.share(ProbeGroup.LAUNCH)
        shares += [(one.period, one.shares[ProbeGroup.LAUNCH]) for one in kept.take(now_ns)[0]]
    period, share = shares[-1]
    assert ProbeGroup.LAUNCH in period.in_turns
    assert share == pytest.approx(0.8 * period.duty, rel=0.05)


def test_costs_follow_the_class_of_each_symbol() -> None:
    costs = HitCosts(TABLE)
    place = TABLE.index("cudart.launch")
    classes = (EntryClass.EMULATED, EntryClass.STEPPED)
    both = Attachment(ProbeGroup.LAUNCH, False, (1, 2), (place, place), (0, 0), classes)
    costs.learn(1, FilePlan((both,)))
    rows = (call("cudart.launch", 10),)
    spent = costs.spent(ProbeDrain(0, SECOND, calls=rows))
    assert spent.keys() == {LAUNCH, FileGroup(1, ProbeGroup.LAUNCH_RESULT)}
    assert spent[LAUNCH].cost_ns == 10 * ASSUMED[EntryClass.STEPPED].entry_ns
    costs.forget(1)
    spent = costs.spent(ProbeDrain(0, SECOND, calls=rows))
    assert spent[LAUNCH].cost_ns == 10 * ASSUMED[EntryClass.EMULATED].entry_ns


@dataclass
class Links:
    """What would be attached; some paths cannot be."""

    now: set[FileGroup] = field(default_factory=set)
    calls: list[tuple[str, int]] = field(default_factory=list)

    @property
    def attached(self) -> frozenset[FileGroup]:
        return frozenset(self.now)

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        self.calls.append((path, len(attachments)))
        if path == "refused":
            raise SourceUnavailable("cannot attach to refused: Invalid argument")
        self.now |= {FileGroup(file, one.group) for one in attachments}

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        self.now -= set(file_groups)


def found(file: int, path: str = "/lib") -> FileFound:
    groups = ((ProbeGroup.LAUNCH, 3), (ProbeGroup.COPY, 1))
    plan = FilePlan(
        tuple(
            Attachment(g, False, tuple(range(n)), (0,) * n, (0,) * n, (EntryClass.NOP,) * n)
            for g, n in groups
        )
    )
    return FileFound(file, (0, file), path, plan, path, "", 0)  # type: ignore[arg-type]


def test_probe_attacher_follows_what_is_wanted_on_old_and_new_files() -> None:
    links, times = Links(), iter(range(0, 100_000, 4_000))
    attacher = ProbeAttacher(links, lambda: next(times))
    attacher.add(found(1))
    assert links.now == {FileGroup(1, ProbeGroup.LAUNCH), FileGroup(1, ProbeGroup.COPY)}
    assert attacher.places() == {
        FileGroup(1, ProbeGroup.LAUNCH): 3_000,
        FileGroup(1, ProbeGroup.COPY): 1_000,
    }
    attacher.follow(frozenset({ProbeGroup.COPY}))
    attacher.add(found(2))
    assert links.now == {FileGroup(1, ProbeGroup.COPY), FileGroup(2, ProbeGroup.COPY)}
    attacher.follow(frozenset(ProbeGroup))
    assert links.now == {
        FileGroup(f, g) for f in (1, 2) for g in (ProbeGroup.LAUNCH, ProbeGroup.COPY)
    }
    attacher.remove(1)
    assert {one.file for one in links.now} == set(attacher.files) == {2}


def test_probe_attacher_asks_once_where_the_kernel_refuses() -> None:
    links = Links()
    attacher = ProbeAttacher(links)
    attacher.add(found(1, "refused"))
    for _ in range(3):
        attacher.follow(frozenset(ProbeGroup))
    assert links.calls == [("refused", 2)]


def collected(drain: ProbeDrain, share: float = 1.0, *, ended: bool = False) -> Collected:
    """A drain in a period in which every group was seen with one probability."""
    governor = Governor(GovernorSettings(), lambda _below: 0)
    period = governor.period(0)
    if share < 1.0:
        turns = frozenset(ProbeGroup)
        period = replace(period, steady=frozenset(), in_turns=turns, duty=share)
    end = None
    if ended:
        drains = Drains(0.0)
        kept = keeper(drains)
        end = kept.take(period.end_ns)[0][0].ended
        assert end is not None
        end = replace(end, attached={FileGroup(1, group): share for group in ProbeGroup})
    attached = frozenset(ProbeGroup) if share == 1.0 else frozenset[ProbeGroup]()
    return Collected(drain, period, dict.fromkeys(ProbeGroup, share), end, attached)


def records(gpus: int = 2, users: GpuUsers | None = None) -> ActivityRecords:
    return ActivityRecords(
        TABLE, CATALOGUE, GpuPlaces(gpus, users or GpuUsers()), lambda _p: "unknown", Q.__eq__
    )


def test_records_carry_the_sampling_rate_and_leave_counts_as_seen() -> None:
    drain = ProbeDrain(7, SECOND, (launches(10), launches(5, 2), launches(3, 1, Q)))
    made = list(records().of([collected(drain, 0.25)], NAMES, ()))
    activity = [one for one in made if isinstance(one, KernelActivity)]
    assert {(one.gpu, one.family, one.count) for one in activity} == {
        (0, "gemm", 5), (1, "gemm", 5), (0, "norm", 2), (1, "norm", 3),
    }  # fmt: skip
    assert {one.sampling_rate_millionths for one in activity} == {250_000}
    assert all(one.gpu_time_ns is None for one in activity)
    assert {one.gpu for one in made if isinstance(one, GpuCoverage)} == {0, 1}
    # By name where the GPU is known, by family where work is spread over several.
    assert {one.kernel for one in activity} == {"(gemm)", "(norm)"}
    one_gpu = records(1).of([collected(drain, 0.25)], NAMES, ())
    assert {o.kernel for o in one_gpu if isinstance(o, KernelActivity)} == {"a_gemm", "a_norm"}


def test_work_of_a_process_whose_gpu_time_is_measured_is_not_counted_again() -> None:
    users = GpuUsers()
    copy = CopyRow(P, 1, Direction.HOST_TO_DEVICE, 1, 64_000_000, ((25, 1),))
    drain = ProbeDrain(7, SECOND, (launches(10),), (call("cudart.memset", 3),), copies=(copy,))
    counted = records(1, users).of([collected(drain)], NAMES, ())
    assert sum(one.count for one in counted if isinstance(one, KernelActivity)) == 14
    users.timed = frozenset({P})
    timed = list(records(1, users).of([collected(drain)], NAMES, ()))
    assert not [one for one in timed if isinstance(one, KernelActivity)]
    # Their bytes are nobody else's to tell.
    assert any(isinstance(one, Observation) and one.value for one in timed)


def test_records_claim_nothing_while_launches_are_not_probed() -> None:
    made = list(records().of([collected(ProbeDrain(7, SECOND, (launches(9),)), 0.0)], NAMES, ()))
    assert made == []


def test_means_are_corrected_and_weigh_drains_by_their_length() -> None:
    copy = CopyRow(P, 1, Direction.HOST_TO_DEVICE, 1, 64_000_000, ((25, 1),))
    ring = CollectiveRow(P, 1, 0xC, "nccl.bcast", 1, 400_000_000, SECOND // 10)
    waits = (call("cudart.stream_synchronize", 1, SECOND // 5), call("cudart.stream_wait_event", 1))
    drains = [
        ProbeDrain(0, SECOND, calls=waits, copies=(copy,), collectives=(ring,)),
        ProbeDrain(SECOND, 3 * SECOND),
    ]
    made = records().of([collected(one, 0.5) for one in drains], NAMES, ())
    means = {(o.section, o.cell): o.value for o in made if isinstance(o, Observation) and o.value}
    assert means == {
        ("copies", "host_to_device"): 500,  # 64 MB / 0.5 in 4 s, of 64 GB/s
        ("collectives", "broadcast"): 500,
        ("collectives", "time_in_calls"): 25_000,  # 0.1 s / 0.5 of 2 GPUs x 4 s
        ("synchronisation_waits", "stream"): 50_000,
    }


def in_turns(made: CallRecords, *periods: tuple[int, int, int]) -> list[GpuCalls]:
    """Records of periods of ten seconds: launches in a window of one, CPU ms in it and in the rest.

    Nothing is known of a process whose CPU ms are below zero.
    """
    found: list[GpuCalls] = []
    for seen, own_ms, rest_ms in periods:
        drain = ProbeDrain(7 + P.start_ns, 9 * SECOND)
        cpu_ns = {P: rest_ms * 10**6 if rest_ms >= 0 else None}
        found += made.of([replace(collected(drain, 0.1), cpu_ns=cpu_ns)], NAMES)
        drain = ProbeDrain(drain.begun_ns + drain.span_ns, SECOND, (launches(seen),))
        last = replace(
            collected(drain, 0.1, ended=True),
            attached=frozenset(ProbeGroup),
            cpu_ns={P: own_ms * 10**6 if own_ms >= 0 else None},
        )
        found += made.of([last], NAMES)
    return found


def test_local_records_hold_a_period_while_groups_take_turns() -> None:
    made = CallRecords(TABLE, lambda _p: ProcessLabels("x"), Q.__eq__)
    records = in_turns(made, (1_000, 100, 900), (1_200, 120, 450), (800, 80, 0))
    assert [record.span_ns for record in records] == [10 * SECOND] * 3
    assert [one.kernel for record in records for one in record.kernels] == ["a_gemm"] * 3
    first, second, third = (record.processes[0].launches for record in records)
    # Of one window nobody knows the spread: the number lies between bounds.
    assert (first.seen, first.value, first.share) == (1_000, 10_000, 0.1)
    assert first.error == inf
    assert first.interval[0] == 1_000
    # Ten launches in each millisecond of CPU time.
    assert second.value == pytest.approx(1_200 + 4_500)
    assert second.error < 1_000
    assert third[:4] == (800, 800.0, 0.0, 0.1)


def test_local_records_of_a_process_without_a_clock_know_no_interval() -> None:
    made = CallRecords(TABLE, lambda _p: ProcessLabels("x"), Q.__eq__)
    last = in_turns(made, *[(1_000, -1, -1)] * 4)[-1].processes[0].launches
    assert last.value == pytest.approx(10_000)
    assert last.interval[1] == last.error == inf


def test_local_records_bound_what_no_window_speaks_for() -> None:
    made = CallRecords(TABLE, lambda _p: ProcessLabels("x"), Q.__eq__)
    usual = [(1_000, 100, 900)] * 6
    burst = in_turns(made, *usual, (1_000, 100, 1_800))[-1].processes[0].launches
    # 0.9 s of CPU time more than ever: 8 million launches of 112 ns are possible.
    assert burst.interval[0] <= 19_000
    assert burst.interval[1] > 8_000_000
    assert burst.error == inf


def test_local_records_of_what_is_not_probed_know_no_number() -> None:
    made = CallRecords(TABLE, lambda _p: ProcessLabels("x"), lambda _p: False)
    drain = ProbeDrain(7, SECOND, (launches(10),))
    (record,) = made.of([collected(drain, 0.0, ended=True)], NAMES)
    assert record.processes[0].launches.variance == inf
    (record,) = made.of([collected(drain, 1.0)], NAMES)
    assert record.processes[0].launches == CountedCalls.exactly(10)


def test_users_of_gpus_are_believed_for_a_while() -> None:
    users = GpuUsers()
    assert users.gpus(7, 0) == ()
    users.see({0: [7], 2: [7, 8]}, SECOND)
    places = GpuPlaces(2, users)
    assert users.gpus(7, 2 * SECOND) == (0, 2)
    assert places.of(ProcessKey(7, 0), 2 * SECOND) == (0,)
    assert places.of(ProcessKey(8, 0), 2 * SECOND) == (0, 1)
    assert places.of(ProcessKey(7, 0), 60 * SECOND) == (0, 1)
    assert places.watched({8}, 2 * SECOND) == (1,)
