"""The pages of one host, in the order of their navigation: which panels each has, and from what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from edge_agent.local.gathering import PREFIX
from edge_agent.local.sent_view import SentReport, sections_of
from pages.layout import Control, Notice, Panel, Screen, rendered
from transport.process.printable import listed
from wire.catalogue import Catalogue

from . import gpu_panels, state_panels
from .host_reading import HostReading, PartUnavailable

_NS: Final = 1_000_000_000
SPANS: Final[Mapping[str, tuple[str, int]]] = {
    "15m": ("15 minutes", 900),
    "1h": ("1 hour", 3_600),
    "6h": ("6 hours", 21_600),
    "24h": ("24 hours", 86_400),
}
NEWEST_SPAN: Final = "1h"
_ROWS_OF_GPUS: Final = 45
"""Columns of the map of GPUs: they can be told apart on a telephone, too."""
_POINTS: Final = 60
_REPORT_ID: Final = 16
_STAYS: Final = "Raw data of this host, for its owner: nothing that is shown here leaves the host."


class StateRefused(ValueError):
    """An address that asks for what there is not; says what was expected."""


@dataclass(frozen=True, slots=True)
class HostState:
    """What the address asks for: a span of SPANS, and the id of one report (b"": none)."""

    span: str = NEWEST_SPAN
    report: bytes = b""

    @property
    def seconds(self) -> int:
        return SPANS[self.span][1]


def read_state(query: Mapping[str, str]) -> HostState:
    """Read an address. Raises StateRefused."""
    unknown = sorted(set(query) - {"span", "report"})
    if unknown:
        raise StateRefused(f"no such parameter: {listed(unknown)}; known are span, report")
    span, report = query.get("span", NEWEST_SPAN), query.get("report", "")
    if span not in SPANS:
        raise StateRefused(f"span: expected one of {', '.join(SPANS)}")
    try:
        wanted = bytes.fromhex(report)
    except ValueError:
        wanted = b"?"
    if len(wanted) not in {0, _REPORT_ID}:
        raise StateRefused(f"report: expected the {2 * _REPORT_ID} hexadecimal digits of an id")
    return HostState(span, wanted)


class PanelGathering:
    """Gathers the panels of a page; a part that cannot be read becomes a notice, once."""

    def __init__(self) -> None:
        self.panels: list[Panel] = []
        self.notices: list[Notice] = []

    @contextmanager
    def part(self, kind: str = "error") -> Iterator[list[Panel]]:
        """Add panels; what is unavailable is said and left out."""
        try:
            yield self.panels
        except PartUnavailable as error:
            notice = Notice(kind, f"{str(error)[:1].upper()}{str(error)[1:]}.")
            if notice not in self.notices:
                self.notices.append(notice)


@dataclass(frozen=True, slots=True)
class HostPage:
    """A page; `fill` adds its panels, and says which `switches` of the configuration are off."""

    name: str
    title: str
    question: str
    fill: Callable[[HostReading, HostState, PanelGathering], None]
    timed: bool = True
    switches: tuple[str, ...] = ()


def page_html(page: HostPage, reading: HostReading, state: HostState) -> str:
    gathering = PanelGathering()
    page.fill(reading, state, gathering)
    if off := reading.off(page.switches):
        said = f"Switched off in the agent's configuration, so not measured here: {listed(off)}."
        gathering.notices.append(Notice("empty", said))
    span = Control("span", "Span", [(name, said) for name, (said, _) in SPANS.items()], state.span)
    query = "" if state.span == NEWEST_SPAN else f"?span={state.span}"
    return rendered(
        Screen(
            title=page.title,
            question=page.question,
            links=[(other.title, f"/{other.name}{query}", other is page) for other in PAGES],
            panels=gathering.panels,
            notices=gathering.notices,
            controls=[span] if page.timed else [],
            status=_STAYS,
            live=True,
        )
    )


def _fill_host(reading: HostReading, state: HostState, into: PanelGathering) -> None:
    wide, fine = state.seconds * _NS // _ROWS_OF_GPUS, state.seconds * _NS // _POINTS
    with into.part("empty"):
        reading.live()  # or a notice
    with into.part() as panels:
        busy = f"{PREFIX}utilisation_percent"
        with reading.history(state.seconds) as history:
            gpus = history.bins(busy, wide)
            found = [history.bins(name, fine) for name in ("host_cpu", "host_memory", busy)]
        panels.append(gpu_panels.gpus_panel(gpus, wide / _NS))
        panels.append(gpu_panels.host_panel(found[0], found[1], found[2], fine / _NS))
        count = len({level.key for level in gpus})
        view = reading.view(state.seconds, steps=_POINTS, gpus=max(count, 1))
        panels.append(gpu_panels.families_panel(view.steps, count))
        panels.append(gpu_panels.kernels_panel(view))


def _fill_calls(reading: HostReading, state: HostState, into: PanelGathering) -> None:
    with into.part() as panels:
        view = reading.view(state.seconds)
        panels.append(gpu_panels.launches_panel(view))
        panels.append(gpu_panels.processes_panel(view))


def _fill_diagnoses(reading: HostReading, _: HostState, into: PanelGathering) -> None:
    with into.part() as panels:
        found = reading.spikes()
        panels.append(state_panels.overview_panel(found))
        newest = enumerate(found[: state_panels.MOST_SPIKES])
        panels.extend(state_panels.spike_panel(story, place) for place, story in newest)


def _fill_health(reading: HostReading, state: HostState, into: PanelGathering) -> None:
    into.panels.append(state_panels.checks_panel(reading.health()))
    with into.part("empty") as panels:
        live = reading.live()
        panels.append(state_panels.sources_panel(live))
        if (devices := state_panels.gpus_panel(live)) is not None:
            panels.append(devices)
    with into.part() as panels:
        events = reading.events(state.seconds)
        panels.append(state_panels.events_panel(events))


def _fill_sent(reading: HostReading, state: HostState, into: PanelGathering) -> None:
    with into.part() as panels:
        found = reading.sent()
        if state.report:
            panels.extend(_one_report(reading, found, state.report))
            return
        since_s = reading.now_s() - state.seconds
        shown = [report for report in found if report.window_end >= since_s]
        panels.append(state_panels.budget_panel(found))
        panels.append(state_panels.reports_panel(shown, state.span))


def _one_report(reading: HostReading, found: list[SentReport], wanted: bytes) -> list[Panel]:
    chosen = next((report for report in found if report.report_id == wanted), None)
    if chosen is None:
        raise PartUnavailable("no report of this host has this id")
    if chosen.task is None:
        return state_panels.report_panels(chosen, [])
    sections = sections_of(chosen.task, Catalogue.load(), reading.put_in(chosen))
    return state_panels.report_panels(chosen, sections)


PAGES: Final = (
    HostPage("host", "This host", "How busy is this host, and with what?", _fill_host,
             switches=("history", "sources.host", "sources.gpus", "sources.gpu_time")),
    HostPage("calls", "GPU calls", "Which programs call the GPUs, and what do they launch?",
             _fill_calls, switches=("history", "sources.probes")),
    HostPage("diagnoses", "Diagnoses", "When was a job slow, why, and what to look at next?",
             _fill_diagnoses, timed=False, switches=("diagnosis", "sources.ebpf")),
    HostPage("health", "Health", "Is anything of this host broken?", _fill_health,
             switches=("history", "sources.gpus", "sources.faults")),
    HostPage("sent", "What was sent", "What has left this host, and what hides it?", _fill_sent),
)  # fmt: skip
