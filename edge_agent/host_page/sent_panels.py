"""What was sent: the reports that left this host, and one in full with the noise that hides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

from collectors.records.quantiles import NORMAL
from edge_agent.local.quantity import quantity
from edge_agent.local.sent_view import SentReport, SentSection
from pages.interval_chart import IntervalRow, interval_chart
from pages.layout import Panel, TableCell
from pages.number import Number, Unit
from pages.scale import length_said, moment_said
from pages.svg import tag
from pages.wording import ABSENT, counted, interval_said, plain

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
    """List the reports, the newest first; each id leads to what is in it.

    span    of the address, which links keep
    """
    title = "Reports"
    if not found:
        return Panel("reports", title, "No report has left this host in this time.")
    size = sum(report.left.size_bytes for report in found if report.left is not None)
    seconds = any(report.window_start % 60 for report in found[:SHOWN])
    return Panel(
        "reports", title,
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
    """Say what the week has cost so far, as the newest report knows it."""
    title = "Budget"
    budget = next((report.budget for report in found if report.budget is not None), None)
    if budget is None:
        return Panel("budget", title, "Nothing has been spent in the last week.")
    return Panel(
        "budget", title,
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
