"""`pointillist agent run`: options to configuration, then the agent with all that attends it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from collectors.devices.bounded import Spawner
from collectors.devices.devices_source import GpuUsers
from edge_agent.bound_gpus import with_bound_gpus
from edge_agent.config import AgentConfig, load_config
from edge_agent.ledger.ledger_records import LedgerRefused
from edge_agent.local.live_socket import log_to_stderr
from edge_agent.open_agent import LIVE_DOMAIN, open_agent, sources_of
from edge_agent.protocol.task_check import choose_gate
from edge_agent.service.agent_service import AgentService, Reloading
from pointillist.installation import sample_hint
from transport.interface import TransportUnavailable
from transport.process.foreign import libc
from transport.process.privileges import take_descriptors
from transport.process.supervision import Notifier
from transport.settings.config import ConfigError, assignment, overlay
from wire.catalogue import Catalogue
from wire.task import DEMO_DOMAIN

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .output import ExitCode, need_file, reported, say

if TYPE_CHECKING:
    from edge_agent.export.host_export import HostExport

_COLLECTED_FROM: Final = 5_000
_HINT: Final = (
    f"{sample_hint('agent.toml')}; or --key-file, --state-dir, --log-folder, --leader and --helper "
    "do without a file"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What was said on the command line; None or empty where nothing was.

    flags   by the `section.key` that each stands for
    """

    config: Path | None = None
    flags: Mapping[str, Path | Sequence[object] | None] = field(default_factory=dict)
    replay: Sequence[Path] = ()
    loader: str | None = None
    assignments: Sequence[str] = ()

    def overrides(self) -> dict[str, Any]:
        """Give the tree of tables that these options stand for. Raises ConfigError."""
        tree: dict[str, Any] = {}
        for name, value in self.flags.items():
            if value:
                section, _, key = name.partition(".")
                plain = str(value) if isinstance(value, Path) else [str(each) for each in value]
                tree = overlay(tree, {section: {key: plain}})
        if self.loader is not None:
            tree = overlay(tree, {"sources": {"ebpf": True, "loader": self.loader}})
        if self.replay:
            traces = [{"path": str(path)} for path in self.replay]
            tree = overlay(tree, {"sources": {"replay": traces}})
        for text in self.assignments:
            tree = overlay(tree, assignment(text))
        return tree

    def file(self, overrides: Mapping[str, Any]) -> Path | None:
        if self.config is not None:
            return self.config
        if overrides and not DEFAULT_CONFIG.exists():
            return None
        return DEFAULT_CONFIG


def load(options: Options) -> tuple[AgentConfig, Callable[[], AgentConfig]]:
    with reported(ExitCode.USAGE, ConfigError, hint=_HINT):
        overrides = options.overrides()
        path = options.file(overrides)
        if path is not None:
            # Made absolute: the working directory is not the agent's to rely on.
            path = need_file(path, "the agent's configuration", _HINT).absolute()

        def read() -> AgentConfig:
            return with_bound_gpus(load_config(path, overrides))

        return read(), read


def settle() -> None:
    """Give back what loading left over, and have the collector leave alone what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_FROM)  # looking six times a second finds next to nothing
    with suppress(AttributeError):  # glibc's own
        libc().malloc_trim(0)


def export_of(config: AgentConfig, version: str) -> HostExport | None:
    """Begin the export of raw numbers, where the operator asked for it; else nothing is loaded."""
    if not config.export.enabled:
        return None
    from edge_agent.export.host_export import HostExport

    return HostExport(config.export, version=version)


def _domain_of(config: AgentConfig) -> str:
    if not config.trust.trial:
        return LIVE_DOMAIN
    say("trust.trial: takes tasks of a trial alone; no fleet is served")
    return DEMO_DOMAIN


def run_agent(options: Options) -> None:
    take_descriptors()
    config, read = load(options)
    log_gate = log_to_stderr(config.log.level)
    # Before anything else: a reload that comes early must not end the agent.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _frame: early.append(number))
    version = metadata.version("pointillist")
    agent_file.become_agent(config)
    domain = _domain_of(config)
    spawner = Spawner()  # before a key is opened, and for every source of a later reload
    config = agent_file.bind_gpus(config)
    users = GpuUsers()
    with reported(ExitCode.REFUSED, LedgerRefused):
        with reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=agent_file.log_hint(config)):
            runtime, absent = open_agent(
                config, domain=domain, gate=choose_gate(), spawner=spawner, users=users
            )
        for source in [*absent, *runtime.lacking]:
            say(f"source {source.source} is absent: {source.reason}")
        catalogue = Catalogue.load()
        again = Reloading(read, lambda new: sources_of(new, catalogue, spawner, users), log_gate)
        export = export_of(config, version)
        service = AgentService(
            runtime, config, absent, notifier=Notifier.from_environment(), reloading=again,
            version=version, settle=settle,
            exported=(lambda: export.counts) if export is not None else dict,
        )  # fmt: skip
        runtime.observe(*(seen for seen in (service, export) if seen is not None))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: runtime.stop())
        signal.signal(signal.SIGHUP, lambda _number, _frame: service.request_reload())
        if early:
            service.request_reload()
        settle()
        runtime.run()


app = typer.Typer()


@app.command(epilog="Example: pointillist agent run --config /etc/pointillist/agent.toml")
def run(
    config: AgentConfigOption = None,
    key_file: Annotated[Path | None, typer.Option(help="The host's key.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Ledger, spool, history.")] = None,
    log_folder: Annotated[Path | None, typer.Option(help="Folder of the embedded log.")] = None,
    leader: Annotated[list[str] | None, typer.Option(help="A Leader's key, hex; repeat.")] = None,
    helper: Annotated[list[str] | None, typer.Option(help="A Helper's key, hex; repeat.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Model of a GPU; repeat.")] = None,
    gpu_uuid: Annotated[list[str] | None, typer.Option(help="Its GPU-...; repeat.")] = None,
    replay: Annotated[list[Path] | None, typer.Option(help="A trace to play; repeat.")] = None,
    loader: Annotated[
        str | None, typer.Option(help="Kernel-level metrics by eBPF, through auto, libbpf or bcc.")
    ] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Any other key: section.key=value; repeat.")
    ] = None,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C; SIGHUP reloads sources and log level.

    Options stand above the file, and can do without one. The agent logs to stderr, never a
    measurement; it refuses demo tasks and seeded noise. Started as root it becomes the configured
    user before it opens a key.
    """
    flags = {
        "host.key_file": key_file, "host.state_dir": state_dir, "host.gpus": gpu,
        "host.gpu_uuids": gpu_uuid, "transport.folder": log_folder, "trust.leaders": leader,
        "trust.helpers": helper,
    }  # fmt: skip
    options = Options(config, flags, replay or (), loader, assign or ())
    run_agent(options)
