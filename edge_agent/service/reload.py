"""SIGHUP: sources, diagnosis and the log's level change in place; identity, trust, ledger and
transport wait for a restart. And the agent's own counters, of which none follows the host's load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collectors.interface import Source, SourceRegistry, UnavailableSource
from edge_agent.agent_runtime import AgentStatus
from edge_agent.config import AgentConfig
from transport.process.supervision import MetricsServer
from transport.settings.config import ConfigError

IN_PLACE: Final = frozenset({"sources", "diagnosis", "log"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did: sections taken, sections that wait for a restart, why it was refused."""

    config: AgentConfig
    changed: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    error: str | None = None

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return "refused"
        return "held_back" if self.held_back else "done"


def reload(current: AgentConfig, read: Callable[[], AgentConfig]) -> Reloaded:
    """Read the configuration anew beside the one in force."""
    try:
        found = read()
    except (ConfigError, OSError) as error:
        return Reloaded(current, error=str(error))
    differs = tuple(
        f.name
        for f in dataclasses.fields(AgentConfig)
        if getattr(found, f.name) != getattr(current, f.name)
    )
    held_back = tuple(name for name in differs if name not in IN_PLACE)
    taken = {name: getattr(found, name) for name in differs if name in IN_PLACE}
    return Reloaded(dataclasses.replace(current, **taken), tuple(taken), held_back)


@dataclass(frozen=True, slots=True)
class Changed:
    """Sources after a change: absent ones, asked anew; those that ended or were stopped; new."""

    absent: tuple[UnavailableSource, ...]
    stopped: tuple[str, ...]
    started: tuple[str, ...]


def change_sources(
    running: Mapping[str, Source],
    before: SourceRegistry,
    after: SourceRegistry,
    replace: Callable[[Sequence[Source]], None],
) -> Changed:
    """Keep what runs with the same settings; stop the rest (`replace` goes on without), then start,
    also what could not before: a reload is how a person says that it may now.
    """
    kept = {
        name: source
        for name, source in running.items()
        if name in after and before.settings(name) == after.settings(name)
    }
    # Stopped first: two of one source may not share a device or a program.
    replace(list(kept.values()))
    now: dict[str, Source] = {}
    absent: list[UnavailableSource] = []
    for name in after:
        source = kept.get(name) or after.start(name)
        if isinstance(source, UnavailableSource):
            absent.append(source)
        else:
            now[name] = source
    replace(list(now.values()))
    return Changed(
        tuple(absent),
        tuple(name for name in running if name not in kept),
        tuple(name for name in now if name not in kept),
    )


CHOOSE_PORT: Final = "metrics.port in the agent's configuration, 0 for a free one"


@dataclass(frozen=True, slots=True)
class SelfStatus:
    """What one scrape shows; replaced as a whole by the agent's loop."""

    agent: AgentStatus
    failures: Mapping[str, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    history_dropped: Mapping[str, int] = field(default_factory=dict)
    reloads: Mapping[str, int] = field(default_factory=dict)
    device_gaps: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    exported: Mapping[str, int] = field(default_factory=dict)
    version: str = ""


class StatusCollector(Collector):
    def __init__(self, status: Callable[[], SelfStatus | None]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        """Give every family; nothing before the loop has gone round once."""
        status = self._status()
        if status is None:
            return
        agent, tally = status.agent, status.agent.tally
        up = dict.fromkeys(agent.sources, 1) | dict.fromkeys(status.absent, 0)
        left_out = {
            (source, reason): count
            for source, reasons in sorted(status.left_out.items())
            for reason, count in sorted(reasons.items())
        }
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        for kind, name, text, labels, values in (
            (counter, "published_records", "records that left: epochs, reports", "",
             {(): tally.published}),
            (counter, "sealed_reports", "reports sealed with their ledger entry", "",
             {(): tally.sealed}),
            (counter, "epochs", "epochs opened", "", {(): tally.epochs}),
            (counter, "expired_records", "sealed records nobody accepts any more", "",
             {(): tally.expired}),
            (counter, "refused", "refusals by reason", "reason", _by_label(tally.refused)),
            (gauge, "spool_records", "sealed records that wait on disk", "",
             {(): agent.spool_records}),
            (gauge, "spool_bytes", "their bytes", "", {(): agent.spool_bytes}),
            (counter, "spool_dropped_records", "records without room or past use", "what",
             _by_label(tally.spool_dropped)),
            (gauge, "transport_up", "1 while the transport takes records", "",
             {(): agent.transport_up}),
            (counter, "source_failures", "failed drains by source", "source",
             _by_label(status.failures)),
            (gauge, "source_up", "1 for a source that runs, 0 for one absent here", "source",
             {(source,): value for source, value in up.items()}),
            (counter, "history_dropped_rows", "dropped rows of the local history", "reason",
             _by_label(status.history_dropped)),
            (counter, "reloads", "reloads by outcome", "outcome", _by_label(status.reloads)),
            (counter, "device_gaps", "fields of GPUs that could not be read, by kind", "kind",
             _by_label(status.device_gaps)),
            (counter, "source_left_out", "what a source left out, by reason", "source reason",
             left_out),
            (counter, "exported_messages", "messages to the operator's collector, by outcome",
             "outcome", _by_label(status.exported)),
            (gauge, "info", "its version", "version", {(status.version,): 1}),
        ):  # fmt: skip
            family = kind(f"pointillist_agent_{name}", text, labels=labels.split())
            for key, value in values.items():
                family.add_metric(key, value)
            yield family


def _by_label(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(label,): count for label, count in sorted(counts.items())}


def metrics_port(port: int, status: Callable[[], SelfStatus | None]) -> MetricsServer:
    """Serve /metrics on loopback; each scrape reads one frozen value. Raises AddressUnavailable."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return MetricsServer(port, make_wsgi_app(registry), CHOOSE_PORT)
