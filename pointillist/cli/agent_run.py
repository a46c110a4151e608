"""`pointillist agent run`: options to configuration, then the agent with all that attends it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pointillist.installation import sample_hint
from transport.process.foreign import libc

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .output import ExitCode, need_file, reported, say

if TYPE_CHECKING:
    from edge_agent.config import AgentConfig
    from edge_agent.export.host_export import HostExport

_FOLDER_HINT: Final = (
    "the Leader makes the log's folder, for the group that [transport] names: start the Leader "
    "first, and this agent as a member of that group (root becomes one)"
)
_KAFKA_HINT: Final = "`pointillist agent doctor` tries each broker of [transport.kafka]"
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
        from transport.settings.config import assignment, overlay

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
        """Give the configuration file; None where flags alone are to do."""
        if self.config is not None:
            return self.config
        if overrides and not DEFAULT_CONFIG.exists():
            return None
        return DEFAULT_CONFIG


def load(options: Options) -> tuple[AgentConfig, Callable[[], AgentConfig]]:
    """Read the configuration, and give how to read it again."""
    from edge_agent.bound_gpus import with_bound_gpus
    from edge_agent.config import load_config
    from transport.settings.config import ConfigError

    with reported(ExitCode.USAGE, ConfigError, hint=_HINT):
        overrides = options.overrides()
        path = options.file(overrides)
        if path is not None:
            # Made absolute: the working directory is not the agent's to rely on.
            path = need_file(path, "the agent's configuration", _HINT).absolute()

        def read() -> AgentConfig:
            return with_bound_gpus(load_config(path, overrides))

        return read(), read


def log_hint(config: AgentConfig) -> str:
    """What to do where the log that a configuration names is away."""
    return _FOLDER_HINT if config.transport.kafka is None else _KAFKA_HINT


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
    """Whose tasks the agent takes, and say so where it is a trial's."""
    from edge_agent.live import LIVE_DOMAIN
    from wire.task import DEMO_DOMAIN

    if not config.trust.trial:
        return LIVE_DOMAIN
    say("trust.trial: takes tasks of a trial alone; no fleet is served")
    return DEMO_DOMAIN


def run_agent(options: Options, become_agent: Callable[[AgentConfig], None]) -> None:
    """Run until a signal; SIGHUP reloads."""
    # Before NumPy comes: an agent multiplies nothing, and idle threads are memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from collectors.devices.bounded import Spawner
    from collectors.devices.devices_source import GpuUsers
    from edge_agent.ledger.ledger_records import LedgerRefused
    from edge_agent.live import open_agent, sources_of
    from edge_agent.local.log_level import log_to_stderr
    from edge_agent.observer import Observers
    from edge_agent.protocol.task_check import choose_gate
    from edge_agent.service.agent_service import AgentService, Reloading
    from transport.port import TransportUnavailable
    from transport.process.privileges import take_descriptors
    from transport.process.supervision import Notifier
    from wire.catalogue import Catalogue

    take_descriptors()
    config, read = load(options)
    log_gate = log_to_stderr(config.log.level)
    # Before anything else: a reload that comes early must not end the agent.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _frame: early.append(number))
    version = metadata.version("pointillist")
    become_agent(config)
    domain = _domain_of(config)
    spawner = Spawner()  # before a key is opened, and for every source of a later reload
    config = agent_file.bind_gpus(config)
    users = GpuUsers()
    with reported(ExitCode.REFUSED, LedgerRefused):
        with reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=log_hint(config)):
            shell, absent = open_agent(
                config, domain=domain, gate=choose_gate(), spawner=spawner, users=users
            )
        for source in [*absent, *shell.lacking]:
            say(f"source {source.source} is absent: {source.reason}")
        catalogue = Catalogue.load()
        again = Reloading(read, lambda new: sources_of(new, catalogue, spawner, users), log_gate)
        export = export_of(config, version)
        service = AgentService(
            shell, config, absent, notifier=Notifier.from_environment(), reloading=again,
            version=version, settle=settle,
            exported=(lambda: export.counts) if export is not None else dict,
        )  # fmt: skip
        shell.observe(service if export is None else Observers([service, export]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: shell.stop())
        signal.signal(signal.SIGHUP, lambda _number, _frame: service.request_reload())
        if early:
            service.request_reload()
        settle()
        shell.run()
