"""What a host is like beside its work: health, diagnoses, and what was sent of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup

from collectors.devices.node_health import HealthRow, HealthVerdict
from collectors.records.basics import NORMAL
from diagnosis.detect.findings import Diagnosis, Evidence
from diagnosis.detect.journal import Series
from edge_agent.local.gathering import PREFIX
from edge_agent.local.local_rows import clean_name
from edge_agent.local.sent_view import SentReport, SentSection
from edge_agent.local.words import (
    ADVICE,
    CAUSES,
    diagnosis_said,
    interferer,
    quantity,
    spike_said,
    steps_said,
    title,
    unknown_said,
)
from pages.interval_chart import IntervalRow, interval_chart
from pages.layout import Panel, TableCell
from pages.svg import length_said, moment_said, tag
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import ABSENT, Number, Unit, counted, interval_said, listed, plain

from .host_reading import SpikeStory

_NS: Final = 1_000_000_000
_MOST_EVENTS: Final = 60
_FIELDS: Final = (
    ("utilisation_percent", "Busy", "%"),
    ("memory_used_bytes", "Memory", "bytes"),
    ("temperature_celsius", "Temperature", "°C"),
    ("power_mw", "Power", "W"),
    ("throttle_reasons", "Held back", ""),
    ("ecc_volatile_uncorrected", "ECC errors", ""),
    ("xid_events", "XIDs", ""),
)
_MW_PER_W: Final = 1_000


def checks_panel(rows: Sequence[HealthRow]) -> Panel:
    failed = [plain(row.check) for row in rows if row.verdict is HealthVerdict.FAIL]
    unknown = [plain(row.check) for row in rows if row.verdict is HealthVerdict.UNKNOWN]
    said = f"Broken: {listed(failed)}." if failed else "Nothing is known to be broken."
    if unknown:
        said += f" Not read here: {listed(unknown)}."
    return Panel(
        "checks", "Checks", said,
        note="What the kernel tells; pointillist agent health also checks the GPUs.",
        heads=[("Check", False), ("Verdict", False), ("Why", False)],
        rows=[
            [
                TableCell(plain(row.check)),
                TableCell(row.verdict.value, unsure=row.verdict is HealthVerdict.UNKNOWN),
                TableCell(row.reason),
            ]
            for row in rows
        ],
        unfolded=True,
    )  # fmt: skip


def sources_panel(live: Mapping[str, Any]) -> Panel:
    agent = live.get("agent", {})
    failing, absent = dict(agent.get("failing", {})), list(agent.get("absent", []))
    rows = [(name, "fails", failing.get(name)) for name in sorted(failing)]
    rows += [(name, "absent", reason) for name, reason in absent]
    rows += [(name, "runs", "") for name in agent.get("sources", []) if name not in failing]
    said = f"{counted(sum(state == 'runs' for _, state, _ in rows), 'source')} of {len(rows)} run."
    return Panel(
        "sources", "Sources", said,
        heads=[("Source", False), ("State", False), ("Why", False)],
        rows=[
            [TableCell(str(name)), TableCell(state), TableCell(str(why))]
            for name, state, why in rows
        ],
        unfolded=True,
    )  # fmt: skip


def gpus_panel(live: Mapping[str, Any]) -> Panel | None:
    """Show what was last read of each GPU; None where the agent reads none."""
    found: dict[str, dict[str, float]] = {}
    for level in live.get("levels", []):
        name = str(level["name"])
        if name.startswith(PREFIX):
            found.setdefault(str(level["key"]), {})[name.removeprefix(PREFIX)] = level["last"]
    if not found:
        return None
    models = live.get("models", {})
    return Panel(
        "devices", "GPUs, as last read", f"{counted(len(found), 'GPU')}.",
        heads=[("GPU", False), ("Model", False), *((head, True) for _, head, _ in _FIELDS)],
        rows=[
            [
                TableCell(key),
                TableCell(str(models.get(key, ABSENT))),
                *(TableCell(_field(fields, name, unit), number=True) for name, _, unit in _FIELDS),
            ]
            for key, fields in sorted(found.items())
        ],
        unfolded=True,
    )  # fmt: skip


def events_panel(events: Sequence[Mapping[str, Any]]) -> Panel:
    heading = "What happened"
    if not events:
        return Panel("events", heading, "No fault, reload or failing source in this time.")
    return Panel(
        "events", heading, f"{counted(len(events), 'event')}, the newest first.",
        heads=[("When, UTC", False), ("What", False), ("Of", False), ("Detail", False)],
        rows=[
            [
                TableCell(moment_said(row["unix_ns"] // _NS, seconds=True)),
                TableCell(plain(row["name"])),
                TableCell(" ".join(part for part in (row["source"], row["key"]) if part)),
                TableCell(row["detail"]),
            ]
            for row in events[:_MOST_EVENTS]
        ],
        unfolded=True,
        more="pointillist agent history --kind event shows all."
        if len(events) > _MOST_EVENTS
        else "",
    )  # fmt: skip


def _field(fields: Mapping[str, float], name: str, unit: str) -> str:
    if name not in fields:
        return ABSENT
    value = fields[name] / _MW_PER_W if name == "power_mw" else fields[name]
    return quantity(value, unit)


MOST_SPIKES: Final = 8
_MOST_ROWS: Final = 60
_MILLISECONDS: Final = Unit("milliseconds", 1.0, " ms", 1)


def overview_panel(found: Sequence[SpikeStory]) -> Panel:
    name = "Spikes"
    if not found:
        message = "No job that was watched became slower than usual, as far as its steps are known."
        return Panel("spikes", name, message)
    causes = Counter(_cause(story) for story in found)
    said = ", ".join(f"{plain(cause)} {count}" for cause, count in causes.most_common(3))
    return Panel(
        "spikes", name, f"{counted(len(found), 'spike')} in the journal: {said}.",
        heads=[
            ("Since, UTC", False), ("Job", False), ("Cause", False), ("Sure", True), ("For", True),
        ],
        rows=[_overview_row(story) for story in found[:_MOST_ROWS]],
        unfolded=True,
        more="pointillist agent diagnose shows all." if len(found) > _MOST_ROWS else "",
    )  # fmt: skip


def spike_panel(story: SpikeStory, place: int) -> Panel:
    standing = _standing(story)
    subject = clean_name(story.subject)
    at = moment_said(int(story.onset_s))
    if standing is None:
        said = "" if story.began is None else f"{clean_name(spike_said(story.began))}. "
        message = f"{said}No cause has been found."
        return Panel(f"spike-{place}", f"{subject}, {at} UTC", message, _picture(story))
    known = (interferer(standing),)
    cause = standing.cause.value
    parts = [
        steps_said(standing.before, standing.now),
        diagnosis_said(standing).replace(cause, plain(cause), 1),
        unknown_said(standing),
        ADVICE[standing.cause],
    ]
    return Panel(
        f"spike-{place}", f"{subject}, {at} UTC",
        " ".join(f"{_capital(clean_name(part))}." for part in parts if part),
        drawing=_picture(story),
        note=f"Judged by {standing.model}. A share of belief for each cause: "
        + ", ".join(f"{plain(c.value)} {100 * s:.0f} %" for c, s in standing.ranked[:3]) + ".",
        heads=[
            ("Evidence", False), ("Now", True), ("Usual", True),
            ("Before the first slow step", True),
        ],
        rows=[_evidence_row(evidence, known) for evidence in standing.evidence],
        unfolded=True,
    )  # fmt: skip


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _standing(story: SpikeStory) -> Diagnosis | None:
    if story.ended is not None and story.ended.last is not None:
        return story.ended.last
    return story.diagnosis


def _cause(story: SpikeStory) -> str:
    standing = _standing(story)
    return "not named" if standing is None else standing.cause.value


def _overview_row(story: SpikeStory) -> list[TableCell]:
    standing = _standing(story)
    cause = ABSENT if standing is None else CAUSES[standing.cause]
    if standing is not None and (by := interferer(standing)):
        cause = f"{cause}, by {clean_name(by)}"
    ended = story.ended
    lasted = "still slow" if ended is None else length_said((ended.ended_ns - ended.onset_ns) / 1e9)
    return [
        TableCell(moment_said(int(story.onset_s))),
        TableCell(clean_name(story.subject)),
        TableCell(f"{plain(_cause(story))}: {cause}"),
        TableCell(
            ABSENT if standing is None else f"{100 * standing.confidence:.0f} %", number=True
        ),
        TableCell(lasted, number=True),
    ]


def _evidence_row(evidence: Evidence, known: tuple[str, ...]) -> list[TableCell]:
    usual = quantity(evidence.baseline, evidence.unit) if evidence.baseline else "none"
    lag = evidence.lag_ms
    whose = evidence.who and evidence.who not in known
    by = f", most by {evidence.who}" if whose else ""
    return [
        TableCell(clean_name(f"{title(evidence.scope, evidence.signal)}{by}")),
        TableCell(quantity(evidence.value, evidence.unit), number=True),
        TableCell(usual, number=True),
        TableCell(quantity(lag, "ms") if lag is not None and lag > 0 else ABSENT, number=True),
    ]


def _picture(story: SpikeStory) -> Markup | None:
    """Draw the seconds around the onset, where the journal has kept them."""
    series = story.series
    if series is None or len(series.seconds) < 2:
        return None
    lines = [
        _line("median step", series, series.p50_ms, story.onset_s, 0),
        _line("longest step", series, series.longest_ms, story.onset_s, 1),
    ]
    return trend_chart("Step times", lines, _MILLISECONDS)


def _line(
    name: str, series: Series, values: Sequence[float | None], onset_s: float, tone: int
) -> TrendLine:
    points = [
        TrendPoint(onset_s + second - 1.0, 1.0, Number(value))
        for second, value in zip(series.seconds, values, strict=False)
    ]
    return TrendLine(name, points, tone)


SHOWN: Final = 60
_ID_SHOWN: Final = 12
_CELLS_SHOWN: Final = 16
FATES: Final = {
    "waits": "waits on this host",
    "sent": "sent",
    "expired": "never sent: too late for anybody",
    "too_long": "never sent: longer than the log takes",
    "not_kept": "spent by an earlier agent",
}


def reports_panel(found: Sequence[SentReport], span: str) -> Panel:
    """List the reports, the newest first; ids lead to what is in one, and keep the span."""
    heading = "Reports"
    if not found:
        return Panel("reports", heading, "No report has left this host in this time.")
    size = sum(report.left.size_bytes for report in found if report.left is not None)
    seconds = any(report.window_start % 60 for report in found[:SHOWN])
    return Panel(
        "reports", heading,
        f"{counted(len(found), 'report')}, {quantity(size, 'bytes')} in all. Beside these an epoch "
        "leaves each hour: keys, sealed to the two parties.",
        heads=[
            ("Window, UTC", False), ("Series", False), ("Report", False), ("Left", False),
            ("Bytes", True), ("Week's budget", True),
        ],
        rows=[_report_row(report, span, seconds) for report in found[:SHOWN]],
        unfolded=True,
        more="pointillist agent sent --since 35d shows all." if len(found) > SHOWN else "",
    )  # fmt: skip


def budget_panel(found: Sequence[SentReport]) -> Panel:
    heading = "Budget"
    budget = next((report.budget for report in found if report.budget is not None), None)
    if budget is None:
        return Panel("budget", heading, "Nothing has been spent in the last week.")
    return Panel(
        "budget", heading,
        f"The week that ended with the newest report has cost {100 * budget.share:.3g} % of its "
        f"budget: epsilon {budget.epsilon:.3g} of {budget.epsilon_most:g}, at delta "
        f"{budget.delta:g}. When it is spent, nothing more leaves.",
    )  # fmt: skip


def report_panels(report: SentReport, sections: Sequence[SentSection]) -> list[Panel]:
    """Show one report in full: a panel for each section that something was put into."""
    task, left = report.task, report.left
    if task is None or left is None:
        said = "An earlier agent spent this window, and kept no more of it."
        return [Panel("report", "Report", said)]
    kept = any(section.cells is not None for section in sections)
    unmeasured = [s for s in sections if s.unmeasured is not None]
    empty = [plain(s.name) for s in sections if s.cells == () and s.unmeasured is None]
    said = (
        f"{report.series}, {length_said(task.window_s)} from {moment_said(report.window_start)} "
        f"UTC: {counted(task.d, 'coordinate')} in {quantity(left.size_bytes, 'bytes')}, "
        f"masked and under noise. {FATES[left.fate.value].capitalize()}."
    )
    if not kept:
        said += " What was put in is no longer kept here."
    elif empty:
        said += f" Nothing was put into {', '.join(empty)}."
    for section in unmeasured:
        said += f" {plain(section.name).capitalize()} was not measured, {section.unmeasured}."
    identity = [("Report", left.report_id.hex()), ("Task", left.task_id.hex()), ("Log", left.log)]
    head = Panel(
        "report", "Report", said,
        heads=[("", False), ("", False)],
        rows=[[TableCell(name), TableCell(value)] for name, value in identity],
    )  # fmt: skip
    return [head, *(_section_panel(s) for s in sections if s.cells)]


def _section_panel(section: SentSection) -> Panel:
    """Draw what was put in with this host's own noise around it: what is within it is hidden."""
    cells = (section.cells or ())[:_CELLS_SHOWN]
    units = {cell.unit for cell in cells}
    written = _written(units.pop()) if len(units) == 1 else ""
    unit = Unit(section.name, 1.0, written, 1, "under the noise, 95 %")
    rows = [
        IntervalRow(
            plain(cell.cell),
            Number(
                cell.value, cell.noise, cell.value - NORMAL * cell.noise,
                cell.value + NORMAL * cell.noise, told=abs(cell.value) > NORMAL * cell.noise,
            ),
        )
        for cell in cells
    ]  # fmt: skip
    hidden = sum(not row.number.told for row in rows)
    more = len(section.cells or ()) - len(cells)
    return Panel(
        f"section-{section.name}", plain(section.name).capitalize(),
        f"{section.about[:1].upper()}{section.about[1:]}. "
        f"{hidden} of {counted(len(rows), 'number')} here {'is' if hidden == 1 else 'are'} hidden "
        "by this host's own noise alone, and drawn dotted.",
        drawing=interval_chart(f"{section.name} as it was put in", rows, unit, signed=True),
        note="What was put in, before it was clipped and rounded; the line is the 95 % range of "
        "the noise that this host added. The noise itself is kept nowhere.",
        heads=[("Cell", False), ("Put in", True), ("Under the noise", True)],
        rows=[
            [
                TableCell(row.name),
                TableCell(f"{cell.value:,.4g}{_written(cell.unit)}", number=True),
                TableCell(interval_said(row.number, unit, signed=True), number=True),
            ]
            for row, cell in zip(rows, cells, strict=True)
        ],
        more=f"{more:,} more: pointillist agent sent --report shows all." if more > 0 else "",
    )  # fmt: skip


def _written(unit: str) -> str:
    return " %" if unit == "percent" else f" {unit}"


def _report_row(report: SentReport, span: str, seconds: bool) -> list[TableCell]:
    left = report.left
    name = ABSENT
    if left is not None:
        query = urlencode({"span": span, "report": report.report_id.hex()})
        name = tag("a", report.report_id.hex()[:_ID_SHOWN], href=f"/sent?{query}")
    fate = "not_kept" if left is None else left.fate.value
    budget = report.budget
    return [
        TableCell(moment_said(report.window_start, seconds=seconds)),
        TableCell(report.series),
        TableCell(name),
        TableCell(FATES[fate]),
        TableCell(ABSENT if left is None else f"{left.size_bytes:,}", number=True),
        TableCell(ABSENT if budget is None else f"{100 * budget.share:.3g} %", number=True),
    ]
