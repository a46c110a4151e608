"""The view of a host: what `agent top`, `agent history` and pages show, made of sums here alone."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from math import hypot
from pathlib import Path
from typing import Any, Final

from collectors.binaries.proc_maps import coarse
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import CountedCalls, MemoryState
from collectors.records.gpu_time import GpuTimes, TimedProcess, TimingState

from .history_tables import ACTIVITY, KERNEL_CALLS, PROCESS_CALLS, PROCESS_TIME
from .local_rows import clean_name
from .sums import (
    COUNTED,
    GPU_PARTS,
    SCALE,
    TIMED,
    TIMED_AS_SEEN,
    TIMED_OF_LIST,
    HistorySums,
    calls_of,
    counted_of_list,
    of_list,
    time_of,
)
from .view_lines import (
    CollectiveLine,
    CopyLine,
    FamilyLine,
    FamilyStep,
    GpuLine,
    HostView,
    KernelLine,
    LevelLine,
    ProcessLine,
    RateEstimate,
    TimedLine,
)
from .words import cupti_name, timing_said

MOST_LINES: Final = 200
"""Kernels, processes and collectives, the busiest; what else there was is counted."""
MOST_STEPS: Final = 20
MOST_EVENTS: Final = 50
_SHOWN_ERRORS: Final = 4
_NS_PER_S: Final = 1_000_000_000


_Copies = tuple[str, CountedCalls, float, Mapping[int, int]]
"""Direction, copies, bytes, how many of those seen have which size in powers of two."""
_BY: Final = "SELECT pid, start_ns"
_CALLED: Final = (
    f"{_BY}, name.name, family, sum(threads), {COUNTED} FROM {{rows}} "
    "GROUP BY pid, start_ns, found.name, family"
)
_PROCESSES: Final = (
    f"{_BY}, max(at_ns), name.name, application, container, pod, slurm_job, sum(span_ns), "
    "sum(wait_share * span_ns) / sum(CASE WHEN wait_share IS NOT NULL THEN span_ns END), "
    f"{', '.join(MemoryState._fields)}, {COUNTED} FROM {{rows}} GROUP BY pid, start_ns"
)
"""What is not added up is of the row that the one max() is of: the last."""
_COPIES: Final = (
    f"{_BY}, {of_list('direction')}, sum({of_list('bytes')}), {counted_of_list('copies')} "
    "FROM {rows} GROUP BY 1, 2, 3"
)
_SIZES: Final = (
    f"{_BY}, {of_list('direction')}, json_extract(bin.value, '$[0]'), "
    "sum(json_extract(bin.value, '$[1]')) FROM {rows} GROUP BY 1, 2, 3, 4 ORDER BY 4"
)
_BINS: Final = "json_each(part.value, '$.log2_bins') AS bin"
_COLLECTIVES: Final = (
    f"{_BY}, {of_list('communicator')}, {of_list('call')}, sum({of_list('bytes')}), "
    f"sum({of_list('duration_ns')}), {counted_of_list('calls')} FROM {{rows}} GROUP BY 1, 2, 3, 4"
)
_FAILURES: Final = (
    f"{_BY}, {of_list('call')}, {of_list('code')}, sum({of_list('failures')}) FROM {{rows}} "
    "GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC"
)
_STATES: Final = (
    f"{_BY}, max(at_ns), name.name, application, container, state, cupti_version FROM {{rows}} "
    "GROUP BY 1, 2"
)
_TIMES: Final = (
    f"{_BY}, sum(span_ns), sum(recorded_ns), sum(lost), {TIMED} FROM {{rows}} GROUP BY 1, 2"
)
_KERNELS: Final = (
    f"{_BY}, {of_list('gpu')}, {of_list('kernel')}, {of_list('family')}, "
    f"sum({of_list('launches')}), sum({of_list('bytes')}), "
    f"sum({of_list('delay_ns')} * {of_list('launches')}) / sum(CASE WHEN "
    f"{of_list('delay_ns')} IS NOT NULL THEN {of_list('launches')} END), "
    f"{TIMED_OF_LIST} FROM {{rows}} GROUP BY 1, 2, 3, 4, 5"
)
_KERNELS_SEEN: Final = (
    f"SELECT NULL, NULL, gpu, name.name, family, sum(count {SCALE}), 0.0, NULL, {TIMED_AS_SEEN} "  # noqa: S608
    "FROM {rows} GROUP BY 3, 4, 5 HAVING sum(gpu_time_ns) IS NOT NULL"
)
_FAMILIES: Final = f"{_BY}, {of_list('family')}, {TIMED_OF_LIST} FROM {{rows}} GROUP BY 1, 2, 3"
_FAMILIES_SEEN: Final = (
    f"SELECT NULL, NULL, family, {TIMED_AS_SEEN} FROM {{rows}} GROUP BY 3 "  # noqa: S608
    "HAVING sum(gpu_time_ns) IS NOT NULL"
)
_OF_GPUS: Final = (
    f"{_BY}, {of_list('gpu')}, {', '.join(f'sum({of_list(name)})' for name in GPU_PARTS)} "
    "FROM {rows} GROUP BY 1, 2, 3"
)


def view_of(
    file: Path | sqlite3.Connection,
    since_ns: int | None = None,
    until_ns: int | None = None,
    *,
    name: str | None = None,
    steps: int = 0,
    gpus: int = 0,
    lists: bool = True,
    whole: bool = False,
    most: int = MOST_LINES,
    now: GpuTimes | None = None,
    longest_s: float | None = None,
) -> HostView:
    """Give the view of [since, until) of Unix time, of rows whose name matches a pattern.

    steps       at most so many, of the time of so many `gpus`; 0: none
    lists       with copies, collectives and failed calls: of a day they take ten times as long
    whole       with metrics and the newest events: of a day metrics take long
    now         what was last said of GPU time, where the view is of now
    longest_s   rows may be longer than what is to be shown
    Raises      HistoryUnavailable
    """
    with HistorySums(file, since_ns, until_ns, name) as sums:
        begin, end = sums.extent(PROCESS_CALLS, PROCESS_TIME, ACTIVITY) or (0, 0)
        asked_s = longest_s or ((until_ns or end) - (since_ns or begin)) / _NS_PER_S
        lines = _Lines(sums, min((end - begin) / _NS_PER_S, asked_s), now, lists)
        timed, called, collectives = lines.timed(), lines.called(), lines.collectives()
        families = tuple(lines.families(called))
        processes = [
            process for process in lines.processes()
            if name is None or fnmatchcase(process.name, name)
        ]  # fmt: skip
        found: dict[str, Sequence[object]] = {
            "timed_kernels": timed, "kernels": called, "processes": processes,
            "collectives": collectives,
        }  # fmt: skip
        unix_ns = until_ns or end
        return HostView(
            unix_ns=unix_ns,
            span_s=lines.span_s,
            gpus=tuple(lines.gpus()),
            kernels=(*timed[:most], *called[:most]),
            processes=tuple(processes[:most]),
            families=families,
            copies=lines.copies(),
            collectives=tuple(collectives[:most]),
            steps=tuple(_step(*step, gpus) for step in (sums.steps(steps) if steps else ())),
            levels=tuple(
                LevelLine._make((*level, max(0, unix_ns - at_ns) / _NS_PER_S))
                for *level, at_ns in (sums.levels() if whole else ())
            ),
            events=tuple(
                {**{name: event[name] for name in ("source", "name", "key", "detail")},
                 "age_s": max(0, unix_ns - event["unix_ns"]) // _NS_PER_S}
                for event in deque(
                    sums.rows("event", since_ns, until_ns, name) if whole else (), MOST_EVENTS
                )
            ),
            refused=dict(now.refused) if now else None,
            left_out={kind: len(all_) - most for kind, all_ in found.items() if len(all_) > most},
        )  # fmt: skip


class _Lines:
    """Makes lines of sums. `span_s`: of all rows, at most as long as is to be shown."""

    def __init__(self, sums: HistorySums, span_s: float, now: GpuTimes | None, lists: bool) -> None:
        self._sums, self.span_s, self._now, self._with_lists = sums, span_s, now, lists
        begin, end = sums.extent(PROCESS_CALLS) or (0, _NS_PER_S)
        self._calls_s = (end - begin) / _NS_PER_S
        self._states = {process.process: process for process in now.processes} if now else {}
        self._moved = self._copies()
        self._parts = list(sums.sums(PROCESS_TIME, _OF_GPUS, "gpus"))
        self._kernels = list(sums.timed(_KERNELS, "kernels", _KERNELS_SEEN))
        self._called, self._timed = self._called_processes(), self._timed_processes()

    def called(self) -> list[KernelLine]:
        """Give kernels whose launches were seen, the most frequent first."""
        lines = []
        for _, pid, start, kernel, family, threads, *counted in self._sums.sums(
            KERNEL_CALLS, _CALLED
        ):
            process, calls = self._called[pid, start], calls_of(*counted)
            lines.append(
                KernelLine(
                    pid, process.name, kernel, family, None, process.seconds,
                    RateEstimate.of_calls(calls, process.seconds),
                    threads_per_launch=threads / max(calls.seen, 1),
                )
            )  # fmt: skip
        return sorted(lines, key=lambda line: -line.launches.value * line.seconds)

    def timed(self) -> list[KernelLine]:
        """Give kernels that were timed, with most GPU time first."""
        lines = []
        for _, pid, start, gpu, kernel, family, launches, size, delay_ns, *time in self._kernels:
            seconds, estimate = self._seconds(pid, start), time_of(*time)
            name = "" if pid is None else self._timed[ProcessKey(pid, start)].name
            mean_us = max(estimate.value_ns, 0.0) / 1e3 / launches if launches > 0 else None
            lines.append(
                KernelLine(
                    pid or 0, name, kernel, family, gpu, seconds, RateEstimate(launches / seconds),
                    RateEstimate.of_time(estimate, seconds), mean_us,
                    None if delay_ns is None else delay_ns / 1e3, size / seconds,
                )
            )  # fmt: skip
        return sorted(
            lines, key=lambda line: -line.gpu_ms.value * line.seconds if line.gpu_ms else 0.0
        )

    def families(self, called: Iterable[KernelLine]) -> Iterator[FamilyLine]:
        """Give each family, that with most GPU time first; processes know nothing of each other."""
        launches: dict[str, float] = defaultdict(float)
        for line in called:
            launches[line.family] += line.launches.value * line.seconds / self._calls_s
        parts: dict[str, list[RateEstimate]] = defaultdict(list)
        for _, pid, start, family, *time in self._sums.timed(_FAMILIES, "families", _FAMILIES_SEEN):
            seconds = self._seconds(pid, start)
            weighed_s = seconds / self._weight(seconds)
            parts[family].append(RateEstimate.of_time(time_of(*time), weighed_s))
        sums = {
            family: RateEstimate.around(
                sum(part.value for part in found),
                None if any(part.error is None for part in found)
                else hypot(*(part.error or 0.0 for part in found)),
            )
            for family, found in parts.items()
        }  # fmt: skip
        whole = sum(gpu_ms.value for gpu_ms in sums.values()) or 1.0
        lines = [
            FamilyLine(family, launches[family], of, of.value / whole if of else None)
            for family in {**sums, **launches}
            for of in [sums.get(family)]
        ]
        yield from sorted(lines, key=lambda line: (-(line.share or 0.0), -line.launches_per_s))

    def collectives(self) -> list[CollectiveLine]:
        """Give collectives by process and communicator, those with most bytes first."""
        lines = []
        for _, pid, start, communicator, call, size, ns, *counted in self._lists(
            _COLLECTIVES, "collectives"
        ):
            process, calls = self._called[pid, start], calls_of(*counted)
            lines.append(
                CollectiveLine(
                    pid, process.name, communicator, call, process.seconds,
                    RateEstimate.of_calls(calls, process.seconds),
                    _seen_of(size, calls) / process.seconds, ns / 1000 / max(calls.seen, 1),
                )
            )  # fmt: skip
        return sorted(lines, key=lambda line: -line.bytes_per_s)

    def copies(self) -> tuple[CopyLine, ...]:
        """Give copies by direction, over the time of all rows of calls."""
        found: dict[str, list[_Copies]] = defaultdict(list)
        for row in chain.from_iterable(self._moved.values()):
            found[row[0]].append(row)
        rows = []
        for direction, parts in found.items():
            _, calls, moved, bins = zip(*parts, strict=True)
            total, sizes = CountedCalls.total(calls, min(of.share for of in calls)), Counter[int]()
            for sizes_of in bins:
                sizes.update(sizes_of)
            rows.append((direction, total, sum(moved), dict(sorted(sizes.items()))))
        return _copied(rows, self._calls_s)

    def processes(self) -> list[ProcessLine]:
        """Give each process once, what it called and how it is timed; the busiest first."""
        lines = {coarse(ProcessKey(*key)): line for key, line in self._called.items()}
        for key, own in self._timed.items():
            line = lines.get(coarse(key), own)
            lines[coarse(key)] = replace(line, gpu_ms=own.gpu_ms, timed=own.timed)
        return sorted(lines.values(), key=_order)

    def gpus(self) -> Iterator[GpuLine]:
        """Give what timed processes covered of each GPU, and which others use it."""
        now, shares = self._now, defaultdict[int, list[float]](lambda: [0.0] * len(GPU_PARTS))
        users: dict[int, set[ProcessKey]] = defaultdict(set)
        for _, pid, start, gpu, *parts in self._parts:
            seconds = self._seconds(pid, start)
            for place, part in enumerate(parts):
                shares[gpu][place] += self._weight(seconds) * part / _NS_PER_S / seconds
            users[gpu].add(ProcessKey(pid, start))
        for process, state in self._states.items():
            for gpu in state.gpus:
                users[gpu].add(process)
        for gpu in range(now.gpus) if now else sorted(shares):
            told = [self._states[process] for process in sorted(users[gpu] & self._states.keys())]
            missing = (state for state in told if state.state is not TimingState.MEASURED)
            yield GpuLine(
                gpu,
                gpu in now.covered if now else None,
                gpu in now.known if now else None,
                len(users[gpu]),
                tuple(
                    {"pid": state.process.pid, "process": clean_name(state.name),
                     "state": state.state.value, "said": timing_said(state.state, state.error)}
                    for state in missing
                ),
                *shares[gpu],
            )  # fmt: skip

    def _called_processes(self) -> dict[tuple[int, int], ProcessLine]:
        found = {
            (pid, start): row
            for _, pid, start, _, *row in self._sums.sums(PROCESS_CALLS, _PROCESSES, named=False)
        }
        seconds = {key: max(row[5], 1) / _NS_PER_S for key, row in found.items()}
        failures: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        for _, pid, start, call, code, count in self._lists(_FAILURES, "errors"):
            failures[pid, start].append({"call": call, "code": code, "failures": count})
        lines = {}
        for key, row in found.items():
            name, application, container, pod, job, _, waits = row[:7]
            memory, counted = row[7:13], row[13:]
            held = dict(zip(MemoryState._fields, memory, strict=True))
            failed = failures[key]
            lines[key] = ProcessLine(
                key[0],
                name,
                application,
                container,
                pod,
                job,
                seconds=seconds[key],
                launches=RateEstimate.of_calls(calls_of(*counted), seconds[key]),
                wait_share=waits,
                memory=None if memory[0] is None else held,
                copies=_copied(self._moved.get(key, ()), seconds[key]),
                failures=sum(error["failures"] for error in failed),
                errors=tuple(failed[:_SHOWN_ERRORS]),
            )
        return lines

    def _copies(self) -> dict[tuple[int, int], list[_Copies]]:
        """Give copies by process, still counts."""
        bins: dict[tuple[int, int, str], dict[int, int]] = defaultdict(dict)
        for _, pid, start, direction, size, count in self._lists(_SIZES, "copies", _BINS):
            bins[pid, start, direction][size] = count
        found: dict[tuple[int, int], list[_Copies]] = defaultdict(list)
        for _, pid, start, direction, size, *counted in self._lists(_COPIES, "copies"):
            calls = calls_of(*counted)
            row = direction, calls, _seen_of(size, calls), bins[pid, start, direction]
            found[pid, start].append(row)
        return found

    def _timed_processes(self) -> dict[ProcessKey, ProcessLine]:
        """Give how each process is timed: as it is now, where that is known, else as it was."""
        launches: dict[ProcessKey, float] = defaultdict(float)
        for _, pid, start, _, _, _, count, *_ in self._kernels:
            launches[ProcessKey(pid, start)] += count
        used: dict[ProcessKey, set[int]] = defaultdict(set)
        for _, pid, start, gpu, *_ in self._parts:
            used[ProcessKey(pid, start)].add(gpu)
        found = {
            ProcessKey(pid, start): row
            for _, pid, start, *row in self._sums.sums(PROCESS_TIME, _TIMES)
        }
        lines = {}
        for state in self._states.values() if self._now else self._kept_states():
            key, gpus = state.process, state.gpus or tuple(sorted(used[state.process]))
            span_ns, recorded_ns, lost, *time = found.get(key, (0, 0, 0))
            seconds = max(span_ns, 1) / _NS_PER_S
            timed = TimedLine(
                state.state.value, timing_said(state.state, state.error), cupti_name(state.cupti),
                gpus, launches[key] / seconds, recorded_ns / span_ns if span_ns else None, lost,
            )  # fmt: skip
            lines[key] = ProcessLine(
                key.pid, clean_name(state.name), state.application, clean_name(state.container),
                "", "", span_ns / _NS_PER_S, timed=timed,
                gpu_ms=RateEstimate.of_time(time_of(*time), seconds) if time else None,
            )  # fmt: skip
        return lines

    def _kept_states(self) -> Iterator[TimedProcess]:
        for _, pid, start, _, name, application, container, state, cupti in self._sums.sums(
            PROCESS_TIME, _STATES
        ):
            yield TimedProcess(
                ProcessKey(pid, start), name, TimingState(state), (), container, application,
                cupti=cupti,
            )  # fmt: skip

    def _lists(self, query: str, *lists: str) -> Iterable[tuple[Any, ...]]:
        return self._sums.sums(PROCESS_CALLS, query, *lists) if self._with_lists else ()

    def _seconds(self, pid: int | None, start_ns: int | None) -> float:
        """What a process's windows stand for; of work that is nobody's the time of all rows."""
        if pid is None or start_ns is None:
            return max(self.span_s, 1.0)
        return self._timed[ProcessKey(pid, start_ns)].seconds

    def _weight(self, seconds: float) -> float:
        """The part of the view's time in which a process was there."""
        return min(seconds / self.span_s, 1.0) if self.span_s else 1.0


def _copied(rows: Iterable[_Copies], seconds: float) -> tuple[CopyLine, ...]:
    """Give a line for each direction, that first with most bytes."""
    lines = [
        CopyLine(name, RateEstimate.of_calls(calls, seconds), moved / seconds, tuple(bins.items()))
        for name, calls, moved, bins in rows
    ]
    return tuple(sorted(lines, key=lambda line: -line.bytes_per_s))


def _order(line: ProcessLine) -> tuple[float, ...]:
    """What processes are ordered by, the least first."""
    live = line.memory["live_bytes"] if line.memory else 0
    launches = line.launches.value * line.seconds if line.launches else 0.0
    timed_ms = line.gpu_ms.value if line.gpu_ms else 0.0
    return -launches, -timed_ms, -live, line.pid


def _seen_of(amount: float, calls: CountedCalls) -> float:
    """Scale what was seen by the share that was."""
    return amount / calls.share if calls.share > 0 else 0.0


def _step(
    begin: int, span_ns: int, families: Mapping[str, float], covered: float, busy: float, gpus: int
) -> FamilyStep:
    whole_ns = max(span_ns * gpus, 1)
    most = sorted(families.items(), key=lambda item: -item[1])
    shares = {family: time_ns / whole_ns for family, time_ns in most}
    return FamilyStep(begin, span_ns, min(covered / whole_ns, 1.0), busy / whole_ns, shares)
