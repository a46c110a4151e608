"""What pages are made of: the agent's history, journal, ledger and socket, read as its user."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from collectors.devices.node_health import HealthRow
from collectors.faults.scan import check_host, probes
from collectors.kernel_files import Tree
from diagnosis.detect.findings import Diagnosis, SpikeBegan, SpikeEnded
from diagnosis.detect.journal import JournalLine, JournalReader, Series
from edge_agent.config import AgentConfig
from edge_agent.journal import read_lines
from edge_agent.ledger.ledger_records import LedgerNone, LedgerRefused
from edge_agent.ledger.left_reports import read_left
from edge_agent.local.history_tables import HistoryUnavailable
from edge_agent.local.live_socket import LiveClient
from edge_agent.local.sent_view import PutIn, SentReport, put_into, sent_reports
from edge_agent.local.sums import HistorySums
from edge_agent.local.view import view_of
from edge_agent.local.view_lines import HostView
from edge_agent.open_agent import read_ledger
from transport.files.keyfiles import KeyFileRefused

_NS: Final = 1_000_000_000
_ANSWER_S: Final = 3.0
_POLL_S: Final = 0.02


class PartUnavailable(Exception):
    """A part of the host's state cannot be read now; the message says which and why."""


@dataclass(frozen=True, slots=True)
class SpikeStory:
    """What the journal last said of one spike; `offset_ns`: Unix time less CLOCK_BOOTTIME."""

    subject: str
    onset_ns: int
    offset_ns: int
    began: SpikeBegan | None = None
    diagnosis: Diagnosis | None = None
    ended: SpikeEnded | None = None
    series: Series | None = None

    @property
    def onset_s(self) -> float:
        """When it began, unix seconds."""
        return (self.onset_ns + self.offset_ns) / _NS


@dataclass(frozen=True, slots=True)
class HostReading:
    """The state of one agent, read anew each time; methods raise PartUnavailable."""

    config: AgentConfig
    now_s: Callable[[], float] = time.time

    def off(self, switches: Iterable[str]) -> list[str]:
        """Name those of these switches of the configuration that are off, by their keys."""
        found = []
        for switch in switches:
            setting = attrgetter(switch)(self.config)
            if not getattr(setting, "enabled", setting):
                found.append(f"{switch}.enabled" if hasattr(setting, "enabled") else switch)
        return found

    def span_ns(self, seconds: int) -> tuple[int, int]:
        until_ns = int(self.now_s() * _NS)
        return until_ns - seconds * _NS, until_ns

    @contextmanager
    def history(self, seconds: int | None = None) -> Iterator[HistorySums]:
        """Open the local history of the last so many seconds; None: of all."""
        since_ns, until_ns = self.span_ns(seconds) if seconds else (None, None)
        with self._kept() as file, HistorySums(file, since_ns, until_ns) as found:
            yield found

    def view(self, seconds: int, *, steps: int = 0, gpus: int = 0) -> HostView:
        """Give what the local history has of the last so many seconds, but for lists of calls."""
        with self._kept() as file:
            return view_of(file, *self.span_ns(seconds), steps=steps, gpus=gpus, lists=False)

    @contextmanager
    def _kept(self) -> Iterator[Path]:
        if not self.config.history_file.exists():
            raise PartUnavailable(
                "there is no local history: the agent makes it when it runs, where history.enabled "
                "is true"
            )
        try:
            yield self.config.history_file
        except HistoryUnavailable as error:
            raise PartUnavailable(f"the local history cannot be read: {error}") from error

    def events(self, seconds: int) -> list[dict[str, Any]]:
        with self.history() as history:
            return list(history.rows("event", self.span_ns(seconds)[0]))[::-1]

    def live(self) -> dict[str, Any]:
        """Ask the running agent for its view."""
        client = LiveClient(self.config.live_socket)
        ends = time.monotonic() + _ANSWER_S
        try:
            while time.monotonic() < ends:
                if (found := client.poll()) is not None:
                    return found
                time.sleep(_POLL_S)
        except OSError as error:
            raise PartUnavailable("no agent runs here: what it kept is shown") from error
        finally:
            client.close()
        raise PartUnavailable(f"the agent has not answered within {_ANSWER_S:.0f} s")

    def spikes(self) -> list[SpikeStory]:
        """Give the spikes of the journal, the newest first."""
        try:
            return stories(JournalReader().read(read_lines(self.config.journal_file)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PartUnavailable(f"the journal cannot be read: {error.strerror}") from error

    def sent(self) -> list[SentReport]:
        """Give the reports that this host sealed, the newest first."""
        try:
            ledger = read_ledger(self.config)
            return sent_reports(ledger, read_left(self.config.ledger_file))[::-1]
        except LedgerNone:
            return []
        except (LedgerRefused, KeyFileRefused) as error:
            raise PartUnavailable(f"the ledger cannot be read: {error}") from error

    def put_in(self, report: SentReport) -> PutIn | None:
        """Give what was put into a report; None where the history no longer has it."""
        try:
            with self.history() as history:
                return put_into(lambda kind, name: history.rows(kind, name=name), report)
        except PartUnavailable:
            return None

    def health(self) -> list[HealthRow]:
        """Judge memory, PCIe, drives, power and links by what the kernel says of them."""
        return check_host({part: list(probe(Tree())) for part, probe in probes().items()})


def stories(lines: Iterator[JournalLine]) -> list[SpikeStory]:
    """Put the lines of each spike together, the newest spike first."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        said = line.finding
        parts = found.setdefault((said.subject, said.onset_ns), {"offset_ns": line.offset_ns})
        match said:
            case SpikeBegan():
                parts["began"] = said
            case Diagnosis():
                parts["diagnosis"] = said
            case SpikeEnded():
                parts["ended"] = said
            case Series():
                parts["series"] = said
    made = [SpikeStory(subject, onset, **parts) for (subject, onset), parts in found.items()]
    return sorted(made, key=lambda story: story.onset_s, reverse=True)
