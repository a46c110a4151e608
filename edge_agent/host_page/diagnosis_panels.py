"""Diagnoses: each spike with its cause, its evidence and the seconds around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from diagnosis.detect.findings import Diagnosis, Evidence
from diagnosis.detect.trail import Series
from edge_agent.local.diagnosis_words import (
    ADVICE,
    CAUSES,
    diagnosis_said,
    interferer,
    spike_said,
    steps_said,
    title,
    unknown_said,
)
from edge_agent.local.local_rows import clean_name
from edge_agent.local.quantity import quantity
from pages.layout import Panel, TableCell
from pages.number import Number, Unit
from pages.scale import length_said, moment_said
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import ABSENT, counted, plain

from .host_reading import SpikeStory

MOST_SPIKES: Final = 8
_MOST_ROWS: Final = 60
_MILLISECONDS: Final = Unit("milliseconds", 1.0, " ms", 1)


def overview_panel(found: Sequence[SpikeStory]) -> Panel:
    """List the spikes, and say what most of them were put down to."""
    name = "Spikes"
    if not found:
        words = "No job that was watched became slower than usual, as far as its steps are known."
        return Panel("spikes", name, words)
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
    """Show one spike with what speaks for its cause."""
    standing = _standing(story)
    subject = clean_name(story.subject)
    at = moment_said(int(story.onset_s))
    if standing is None:
        said = "" if story.began is None else f"{clean_name(spike_said(story.began))}. "
        words = f"{said}No cause has been found."
        return Panel(f"spike-{place}", f"{subject}, {at} UTC", words, _picture(story))
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
