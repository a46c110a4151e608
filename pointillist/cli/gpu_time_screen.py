"""The GPU time of `agent top`: by GPU, program and kernel, and what of it is not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from rich.console import ConsoleDimensions, RenderableType
from rich.layout import Layout
from rich.text import Text

from edge_agent.local.words import quantity
from pointillist.table import Column

from .output import rate, short_bytes
from .screen_parts import FRAME, LEAST_KERNELS, MOST_ROWS, in_all, page_head, panel, rows_panel

View = Mapping[str, Any]
_SLIM: Final = 76
_WIDE: Final = 100
_VERY_WIDE: Final = 130
_SHOWN_FAMILIES: Final = 6
_MOST_TOLD: Final = 3
"""Lines about programs that are not measured; the page of programs has the others."""
_NO_SOURCE: Final = "no source times kernels (sources.gpu_time.enabled switches it on)"
_NOT_YET: Final = "nothing was heard of the sources in the last seconds"
_NO_PROGRAM: Final = "no program reports: `pointillist agent attach` prints what one needs"


def gpu_time_page(view: View | None, note: str, size: ConsoleDimensions) -> Layout:
    """Arrange GPU time on a whole terminal of this size; of a small one the top rows."""
    times = _times(view)
    whole = Layout()
    lines = coverage_lines(times)[: max(2, size.height // 6)] if view else [_NOT_YET]
    said = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
    title = "GPU time, raw: it stays here   (h: host, g: GPU calls, q: end)"
    head = page_head(title, said, note)
    gpus, programs = times.get("gpus", ()), times.get("processes", ())
    left = size.height - len(lines) - 2 - 3 * FRAME - LEAST_KERNELS
    shown_gpus = max(1, min(len(gpus), left // 3))
    shown_programs = max(1, min(len(programs), (left - shown_gpus) // 2 + 1))
    kernels = max(1, left + LEAST_KERNELS - shown_gpus - shown_programs)
    whole.split_column(
        Layout(head, size=len(lines) + 2),
        Layout(_gpus(times, size.width, shown_gpus), size=FRAME + shown_gpus),
        Layout(_programs(times, size.width, shown_programs), size=FRAME + shown_programs),
        Layout(_kernels(times, size.width, kernels), minimum_size=FRAME),
    )
    return whole


def gpu_time_panels(view: View | None, width: int) -> list[RenderableType]:
    """Everything below one another, for a pipe; nothing where no source times kernels."""
    times = _times(view)
    if not times:
        return []
    said = Text("\n".join(coverage_lines(times)))
    return [
        panel("GPU time", said), _gpus(times, width), _programs(times, width),
        _kernels(times, width),
    ]  # fmt: skip


def gpu_time_line(view: View | None) -> Text | None:
    """Sum GPU time up in a line of the GPU panel; None where nothing is timed."""
    times = _times(view)
    if not times:
        return None
    text = Text(coverage_lines(times)[0])
    families = [
        f"{family['family']} {100 * family['share']:.0f} %" for family in times["families"][:2]
    ]
    if families:
        text.append(f": {', '.join(families)}")
    return text.append("  (key t)", style="dim")


def coverage_lines(times: View) -> list[str]:
    """Say which GPUs are measured, and which programs are not and why."""
    times = _times(times)
    if not times:
        return [_NO_SOURCE]
    gpus = times["gpus"]
    used = [gpu for gpu in gpus if gpu["processes"]]
    covered = sum(gpu["covered"] for gpu in used)
    timed = sum(program["timed"]["state"] == "measured" for program in times["processes"])
    programs = f"kernels of {timed} of {in_all(times, 'processes')} programs are timed"
    if not times["processes"]:
        first = _NO_PROGRAM
    elif any(gpu["known"] for gpu in gpus):
        first = f"{programs}, {covered} of {len(used)} GPUs in use are measured whole"
    else:
        first = f"{programs}; no driver says who else uses a GPU"
    missing = [program for program in times["processes"] if program["timed"]["state"] != "measured"]
    lines = [first, *(_missing(program) for program in missing[:_MOST_TOLD])]
    if len(missing) > _MOST_TOLD:
        lines.append(f"and {len(missing) - _MOST_TOLD} more programs are not measured")
    for reason, count in times["refused"].items():
        lines.append(f"{count} connections turned away: {reason}")
    return lines


def _missing(program: View) -> str:
    gpus = program["timed"]["gpus"]
    where = "".join(f"GPU {gpu}: " for gpu in gpus[:1])
    more = f" (and {len(gpus) - 1} GPUs more)" if len(gpus) > 1 else ""
    return f"{where}{program['name']}[{program['pid']}]: {program['timed']['said']}{more}"


def _times(view: View | None) -> View:
    """Give what of the view is of GPU time; nothing where no source times kernels."""
    found = view or {}
    if found.get("refused") is None:
        return {}
    programs = [program for program in found["processes"] if program["timed"]]
    programs.sort(key=lambda p: (-p["gpu_ms"]["value"] if p["gpu_ms"] else 0.0, p["pid"]))
    kernels = [kernel for kernel in found["kernels"] if kernel["gpu_ms"]]
    families = [family for family in found["families"] if family["gpu_ms"]]
    return {**found, "processes": programs, "kernels": kernels, "families": families}


def _percent(name: str) -> Callable[[View], str]:
    """A share of the GPU's time; "-" where nothing is measured."""
    return lambda gpu: f"{100 * gpu[name]:.1f} %" if _measured(gpu) else "-"


def _measured(gpu: View) -> bool:
    return bool(gpu["processes"] > len(gpu["not_measured"]))


def _hidden(part: str) -> Callable[[View], str]:
    """The share of copies, or collectives, and how much of it ran while kernels computed."""

    def write(gpu: View) -> str:
        beside = f" ({100 * gpu[f'{part}_beside'] / gpu[part]:.0f} %)" if gpu[part] else ""
        return f"{_percent(part)(gpu)}{beside}"

    return write


def _coverage(gpu: View) -> str:
    if not gpu["processes"]:
        return "no program" if gpu["known"] else "?"
    measured = gpu["processes"] - len(gpu["not_measured"])
    if gpu["covered"]:
        return "all"
    return f"{measured} of {gpu['processes']}{'' if gpu['known'] else ' known'}"


_GPUS: Final = (
    Column("GPU", lambda gpu: str(gpu["gpu"]), right=True),
    Column("busy", _percent("busy"), right=True),
    Column("compute", _percent("compute"), right=True),
    Column("copies (hidden)", _hidden("copy"), right=True),
    Column("collectives (hidden)", _hidden("collective"), right=True, from_width=_SLIM),
    Column("2 kernels at once", _percent("kernels_beside"), right=True, from_width=_WIDE),
    Column("programs timed", _coverage),
)


def _gpus(times: View, width: int, most: int = MOST_ROWS) -> RenderableType:
    gpus = times.get("gpus", ())
    busiest = sorted(gpus, key=lambda gpu: -gpu["busy"])[:most] if len(gpus) > most else gpus
    rows = sorted(busiest, key=itemgetter("gpu"))
    below = "hidden: of it, while kernels computed" if width >= _SLIM else ""
    return rows_panel("GPUs, last 10 s", _GPUS, rows, width, in_all=len(gpus), below=below)


def _time(row: View) -> str:
    time = row["gpu_ms"]["value"] if row["gpu_ms"] else 0.0
    return f"{max(time, 0.0) / 10:.1f}"  # an estimate may be below 0


def _error(row: View) -> str:
    """Half of the 95 % interval; nothing where none is known."""
    error = row["gpu_ms"] and row["gpu_ms"]["error"]
    return "" if error is None else f"{error / 10:.1f}"


def _recorded(program: View) -> str:
    share = program["timed"]["recorded_share"]
    return "-" if share is None else f"{100 * share:.1f}"


def _launches(row: View) -> float:
    """Launches a second of a kernel, or of a program's kernels that were timed."""
    timed = row.get("timed")
    return float(timed["launches_per_s"] if timed else row["launches"]["value"])


def _micros(name: str) -> Callable[[View], str]:
    return lambda kernel: "-" if kernel[name] is None else quantity(kernel[name], "µs")


_TIME: Final = Column("GPU %", _time, right=True)
_INTERVAL: Final = Column("±", _error, right=True)
_LAUNCHES: Final = Column("launches/s", lambda row: rate(_launches(row)), right=True)
_PID: Final = Column("pid", lambda row: str(row["pid"]), right=True)
_OF_PROGRAM: Final = (
    Column("recorded %", _recorded, right=True, from_width=_SLIM),
    Column("GPUs", lambda p: ",".join(map(str, p["timed"]["gpus"])) or "?", from_width=_SLIM),
    Column("CUPTI", lambda program: program["timed"]["cupti"] or "-", from_width=_SLIM),
    Column("lost", lambda program: f"{program['timed']['lost']:,}", right=True, from_width=_WIDE),
    Column("application", lambda program: program["application"] or "-", from_width=_VERY_WIDE),
    Column("container", lambda program: program["container"][:12] or "-", from_width=_VERY_WIDE),
    Column("timed", lambda program: program["timed"]["said"]),
)
_OF_KERNEL: Final = (
    Column("mean", _micros("mean_us"), right=True),
    Column("waits", _micros("delay_us"), right=True, from_width=_WIDE),
    Column("bytes/s", lambda kernel: short_bytes(kernel["bytes_per_s"]) if kernel["bytes_per_s"]
           else "", right=True, from_width=_WIDE),
    Column("family", itemgetter("family")),
    Column("GPU", lambda kernel: str(kernel["gpu"]), right=True, from_width=_SLIM),
    Column("program", itemgetter("process"), from_width=_VERY_WIDE),
    Column("kernel", itemgetter("kernel")),
)  # fmt: skip


def _programs(times: View, width: int, most: int = MOST_ROWS) -> RenderableType:
    rows, every = times.get("processes", ())[:most], in_all(times, "processes")
    interval = (_INTERVAL,) if any(map(_error, rows)) else ()
    head = (_PID, Column("program", itemgetter("name")), _TIME, *interval, _LAUNCHES)
    columns = (*head, *_OF_PROGRAM)
    return rows_panel("programs", columns, rows, width, grows="timed", in_all=every)


def _kernels(times: View, width: int, most: int = MOST_ROWS) -> RenderableType:
    rows = times.get("kernels", ())[:most]
    interval = (_INTERVAL,) if any(map(_error, rows)) else ()
    pid = (_PID,) if width >= _SLIM else ()
    families = [
        f"{family['family']} {100 * family['share']:.0f} %"
        for family in times.get("families", ())[:_SHOWN_FAMILIES]
    ]
    return rows_panel(
        "kernels, % of one GPU's time",
        (_TIME, *interval, _LAUNCHES, *_OF_KERNEL[:-1], *pid, _OF_KERNEL[-1]),
        rows, width, grows="kernel", in_all=in_all(times, "kernels", "timed_kernels"),
        parts=families,
    )  # fmt: skip
