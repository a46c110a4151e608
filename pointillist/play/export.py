"""`pointillist simulate --export`: a scenario's reports to running aggregators, as if a fleet."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from edge_agent.config import TrustSection
from edge_agent.protocol.task_check import Bounds
from simulator.exported_fleet import ExportedFleet, ExportSettings, load_identities, make_identities
from simulator.fleet.hosts import make_inventory
from simulator.scenario import Scenario, load
from simulator.slices import WindowTruth
from transport.factory import TransportTable
from transport.settings.config import limited, read_tree
from wire.catalogue import Catalogue

from .setup import Changes

DEFAULT_HOURS = 1.0


class ExportConfigError(ValueError):
    """export.toml, or what it names, cannot be used; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class FleetSection:
    """The simulated hosts.

    identities  folder of their keys and ledger; --enrol makes it
    plan        name of the [[plan]] in the Leader's plans file
    domain      "live" takes fleet tasks, as agents do; "demo" those of a demo
    """

    identities: Path
    plan: str = "fleet"
    domain: str = limited("live", choices=("live", "demo"))


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """The whole tree of export.toml; transport, trust and bounds are those of agent.toml."""

    fleet: FleetSection
    transport: TransportTable
    trust: TrustSection
    bounds: Bounds = field(default_factory=Bounds)


def load_export_config(path: Path, kind: str) -> ExportConfig:
    """Read export.toml.

    kind        "kafka" or "log": where the file must say that reports go
    Raises      ExportConfigError
    """
    config = read_tree(ExportConfig, path, error=ExportConfigError)
    if (config.transport.kafka is not None) != (kind == "kafka"):
        wanted = "[transport.kafka]" if kind == "kafka" else "[transport] folder"
        raise ExportConfigError(f"{path}: --export {kind} expects {wanted}, found the other one")
    return config


def enrol_hosts(
    scenario: str, asked: Mapping[str, Any], config_path: Path, kind: str
) -> dict[str, Any]:
    """Make keys and join requests. Raises ExportConfigError, IdentitiesError, ScenarioError."""
    config = load_export_config(config_path, kind)
    catalogue = Catalogue.load()
    inventory = make_inventory(_scenario(scenario, asked), catalogue)
    leaders = config.trust.leaders
    if len(leaders) != 1:
        raise ExportConfigError(
            f"{config_path}: trust.leaders: hosts are enrolled with one Leader, got {len(leaders)}"
        )
    (leader,) = leaders
    try:
        made = make_identities(config.fleet.identities, inventory, config.fleet.plan, leader)
    except OSError as error:
        raise ExportConfigError(f"{error.filename}: {error.strerror}") from None
    return asdict(made) | {
        "next": [
            f"cat {made.operators_file} >> plans.toml; cat {made.operators_file} >> helper.toml",
            (
                f"pointillist leader roster build --plans plans.toml --requests {made.joins} "
                "--key LEADER/identity.key --now --out fleet.roster"
            ),
            "pointillist helper countersign fleet.roster --first --config helper.toml",
            "cp fleet.roster SIGNED_DIR  # the Leader's, and the Helper's",
            f"pointillist simulate {scenario} --export {kind} --config {config_path}",
        ]
    }


def export_reports(
    scenario: str,
    asked: Mapping[str, Any],
    config_path: Path,
    kind: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Send reports for --hours of the wall clock, one line a window, until done or stopped.

    Raises      ExportConfigError, IdentitiesError, ScenarioError, LedgerRefused,
                TransportUnavailable
    """
    config = load_export_config(config_path, kind)
    hosts = load_identities(config.fleet.identities)
    hours = asked.get("hours") or DEFAULT_HOURS
    played = _scenario(scenario, {**asked, "hosts": len(hosts)})
    settings = ExportSettings(
        config.fleet.identities,
        config.transport.settings,
        config.trust,
        config.bounds,
        hours * 3600,
        config.fleet.domain,
    )
    stop = Event()  # what was sealed is then in the ledger's spool
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    fleet = ExportedFleet(played, hosts, settings, lambda window: say(told(window)))
    say(f"{len(hosts):,} hosts, waiting for tasks and roster from the log")
    return fleet.run(stop.is_set)


def told(window: WindowTruth) -> str:
    return f"{window.series} {window.start_s}: {window.hosts:,} reports"


def _scenario(scenario: str, asked: Mapping[str, Any]) -> Scenario:
    return Changes(hosts=asked.get("hosts"), seed=asked.get("seed")).apply(load(scenario))
