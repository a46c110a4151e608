"""The GPU calls of `agent top`: by kernel, process, direction and communicator, and their cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from rich.console import ConsoleDimensions, RenderableType
from rich.layout import Layout
from rich.text import Text

from edge_agent.local.words import unnamed_said
from pointillist.table import Column

from .output import age, rate, short_bytes
from .screen_parts import (
    FRAME,
    LEAST_KERNELS,
    MOST_ROWS,
    in_all,
    page_head,
    panel,
    rows_panel,
    shortened,
)

View = Mapping[str, Any]
_SLIM: Final = 76
"""Columns below which processes are shown without their live, unfreed and oldest memory."""
_HALF_SLIM, _HALF_WIDE = 38, 60
"""Columns of the lower panels: below which without sizes, from which with communicators."""
_WIDE: Final = 100
_VERY_WIDE: Final = 150
_TALL: Final = 46
_HEAD_ROWS: Final = 4
_SIZE_CELLS: Final = 12
_DIRECTIONS: Final = {
    "host_to_host": "host→host",
    "host_to_device": "host→GPU",
    "device_to_host": "GPU→host",
    "device_to_device": "GPU→GPU",
    "default": "by address",
}


def calls_page(view: View | None, note: str, size: ConsoleDimensions) -> Layout:
    calls = _calls(view)
    whole = Layout()
    title = "GPU calls, raw: they stay here   (h: host, q: end)"
    head = page_head(title, _governor(calls), note)
    processes = calls.get("processes", ())
    low = min(FRAME + max(len(calls.get("copies", ())), 1), max(4, size.height // 4))
    room = size.height - _HEAD_ROWS - low - FRAME - LEAST_KERNELS - FRAME
    shown = max(1, min(len(processes), room // 2 + 1))
    kernels = max(1, size.height - _HEAD_ROWS - low - FRAME - shown - FRAME)
    whole.split_column(
        Layout(head, size=_HEAD_ROWS),
        Layout(_processes(calls, size.width, shown), size=FRAME + shown),
        Layout(_kernels(calls, size.width, kernels), minimum_size=FRAME),
        Layout(name="low", size=low),
    )
    whole["low"].split_row(
        Layout(_copies(calls, size.width // 2), ratio=1),
        Layout(_collectives(calls, size.width // 2), ratio=1),
    )
    return whole


def calls_rows(view: View | None, size: ConsoleDimensions) -> Layout | None:
    calls = _calls(view)
    if size.height < _TALL or not calls.get("processes"):
        return None
    part = Layout(ratio=2)
    part.split_row(
        Layout(_kernels(calls, size.width // 2), ratio=1),
        Layout(_processes(calls, size.width // 2), ratio=1),
    )
    return part


def calls_panels(view: View | None, width: int) -> list[RenderableType]:
    calls = _calls(view)
    if not calls:
        return []
    return [
        panel("GPU calls", _governor(calls)), _processes(calls, width), _kernels(calls, width),
        _copies(calls, width), _collectives(calls, width),
    ]  # fmt: skip


def calls_line(view: View | None) -> Text | None:
    calls = _calls(view)
    if not calls:
        return None
    total = sum(process["launches"]["value"] for process in calls["processes"])
    count = in_all(calls, "processes")
    text = Text(f"{rate(total)} launches/s of {count} process{'' if count == 1 else 'es'}")
    governor = calls.get("governor")
    if governor is not None:
        text.append(f", probes {_cost(governor)}")
    return text.append("  (key g)", style="dim")


def _calls(view: View | None) -> View:
    found = view or {}
    called = [process for process in found.get("processes", ()) if process["launches"]]
    if not called and not found.get("governor"):
        return {}
    kernels = [kernel for kernel in found["kernels"] if not kernel["gpu_ms"]]
    return {**found, "processes": called, "kernels": kernels}


def _cost(governor: View) -> str:
    spent = governor["measured"] if governor["measured"] is not None else governor["predicted"]
    return f"{100 * spent:.2f} % of {100 * governor['budget']:.2f} %"


def _governor(calls: View) -> Text:
    governor = calls.get("governor")
    if governor is None:
        return Text(
            "the governor has not said anything yet"
            if calls
            else "no GPU call was seen in the last seconds"
        )
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"probes: {_cost(governor)}", style="bold")
    worst, files = governor["worst_pid"], governor["files"]
    text.append(f" (pid {worst})" if worst is not None else " (no process)")
    text.append(f", {files} file{'' if files == 1 else 's'} by {governor['loader']}")
    lost = {what: count for what, count in governor["lost"].items() if count}
    if lost:
        said = ", ".join(f"{what} {count:,}" for what, count in lost.items())
        text.append(f", lost {said}", style="red")
    else:
        text.append(", nothing lost")
    text.append("\n")
    if governor["in_turns"]:
        seen = f"{100 * governor['duty']:.1f} % of {governor['period_s']:.0f} s seen"
        text.append(f"{', '.join(governor['in_turns'])}: {seen}", style="yellow")
    elif governor["dropped"]:
        text.append(f"all seen of {', '.join(governor['steady']) or 'nothing'}")
    else:
        text.append("every call is seen")
    for reason in dict.fromkeys(governor["dropped"].values()):
        groups = [group for group, why in governor["dropped"].items() if why == reason]
        text.append(f"; not {', '.join(groups)}: {reason}", style="yellow")
    if unnamed := unnamed_said(governor.get("unnamed", {})):
        text.append(f"; {unnamed}", style="yellow")
    return text


def _processes(calls: View, width: int, most: int = MOST_ROWS) -> RenderableType:
    rows, every = calls.get("processes", ())[:most], in_all(calls, "processes")
    return rows_panel("processes", _PROCESSES, rows, width, grows="process", in_all=every)


def _memory(write: Callable[[View], str]) -> Callable[[View], str]:
    return lambda process: "-" if process["memory"] is None else write(process["memory"])


def _held(when: str) -> Callable[[View], str]:
    return _memory(
        lambda memory: f"{'≥' if memory['untracked'] else ''}{short_bytes(memory[when])}"
    )


def _failed(process: View) -> str:
    if not process["failures"]:
        return "0"
    return f"{process['failures']:,} ({process['errors'][0]['code']})"


def _place(process: View) -> str:
    container = process["container"][:12]
    return " ".join(
        p for p in (container, shortened(process["pod"], 14), process["slurm_job"]) if p
    )


def _waits(process: View) -> str:
    share = process["wait_share"]
    return "-" if share is None else f"{100 * share:.1f}"


def _error(row: View) -> str:
    """Half of the 95 % interval; nothing where every call was seen."""
    launches = row["launches"]
    if launches["share"] >= 1:
        return ""
    return "?" if launches["error"] is None else rate(launches["error"])


_UNFREED: Final = _memory(lambda memory: f"{max(0, memory['allocations'] - memory['frees']):,}")
_OLDEST: Final = _memory(
    lambda memory: age(memory["oldest_age_ns"]) if memory["oldest_age_ns"] else "-"
)
_LAUNCHES: Final = (
    Column("launches/s", lambda row: rate(row["launches"]["value"]), right=True),
    Column("±", _error, right=True),
)
_PID: Final = Column("pid", lambda row: str(row["pid"]), right=True)
_PROCESSES: Final = (
    _PID,
    Column("process", itemgetter("name")),
    Column("application", lambda process: process["application"] or "-", from_width=_WIDE),
    *_LAUNCHES,
    Column("wait %", _waits, right=True),
    Column("live", _held("live_bytes"), right=True, from_width=_SLIM),
    Column("peak", _held("peak_bytes"), right=True),
    Column("unfreed", _UNFREED, right=True, from_width=_SLIM),
    Column("oldest", _OLDEST, right=True, from_width=_SLIM),
    Column("failed", _failed, right=True),
    Column("container, pod, job", _place, from_width=_VERY_WIDE),
)
_SEEN: Final = Column(
    "seen %", lambda kernel: f"{100 * kernel['launches']['share']:.1f}", right=True
)
_OF_KERNEL: Final = (
    Column("family", itemgetter("family")),
    _PID,
    Column("process", itemgetter("process"), from_width=_WIDE),
    Column("threads", lambda row: rate(row["threads_per_launch"]), right=True, from_width=_WIDE),
    Column("kernel", itemgetter("kernel")),
)


def _kernels(calls: View, width: int, shown: int = MOST_ROWS) -> RenderableType:
    rows = calls.get("kernels", ())[:shown]
    sampled = [_SEEN] if any(row["launches"]["share"] < 1 for row in rows) else []
    most = sorted(calls.get("families", ()), key=lambda family: -family["launches_per_s"])
    families = [
        f"{family['family'] or 'other'} {rate(family['launches_per_s'])}/s"
        for family in most[:5]
        if family["launches_per_s"]
    ]
    return rows_panel(
        "kernels", (*_LAUNCHES, *sampled, *_OF_KERNEL), rows, width, grows="kernel",
        in_all=in_all(calls, "kernels"), parts=families,
    )  # fmt: skip


_MOVED: Final = Column("bytes/s", lambda row: short_bytes(row["bytes_per_s"]), right=True)


def _copies(calls: View, width: int) -> RenderableType:
    cells = max(1, min(_SIZE_CELLS, width - 34))
    columns = (
        Column("copies", lambda copy: _DIRECTIONS[copy["direction"]]),
        Column("/s", lambda copy: rate(copy["copies"]["value"]), right=True),
        _MOVED,
        Column("sizes", lambda copy: _sizes(copy["log2_bins"], cells), from_width=_HALF_SLIM),
    )
    grows = "sizes" if width >= _HALF_SLIM else None
    return rows_panel("copies", columns, calls.get("copies", ()), width, grows=grows)


def _sizes(bins: Sequence[Sequence[int]], cells: int) -> str:
    if not bins:
        return ""
    first, last = bins[0][0], bins[-1][0]
    step = (last - first) // cells + 1
    counts = [0] * ((last - first) // step + 1)
    for place, count in bins:
        counts[(place - first) // step] += count
    drawn = "".join(" ▁▂▃▄▅▆▇█"[-(-8 * count // max(counts))] for count in counts)
    return f"{short_bytes(2**first)} {drawn} {short_bytes(2 ** (last + 1))}"


_COLLECTIVES: Final = (
    Column("collective", itemgetter("call")),
    Column("/s", lambda call: rate(call["calls"]["value"]), right=True),
    _MOVED,
    Column("mean us", lambda call: rate(call["mean_us"]), right=True, from_width=_HALF_SLIM),
    replace(_PID, from_width=_HALF_SLIM),
    Column("communicator", itemgetter("communicator"), from_width=_HALF_WIDE),
)


def _collectives(calls: View, width: int) -> RenderableType:
    rows = calls.get("collectives", ())
    return rows_panel("collectives", _COLLECTIVES, rows, width, grows="collective")
