"""What commands of the agent share: its configuration file, and giving root up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pointillist.installation import sample_hint
from transport.factory import Side, prepare_transport
from transport.files.private_files import give
from transport.process.privileges import drop_to, ensure_users
from transport.process.unforeseen import keep_in
from transport.settings.config import ConfigError

from .output import CommandError, ExitCode, need_file, reported, say

if TYPE_CHECKING:
    from edge_agent.bound_gpus import ListedGpu
    from edge_agent.config import AgentConfig

_HINT: Final = f"name it with --config; {sample_hint('agent.toml')}"

_GPUS_HINT: Final = "install their driver and ask again; or name none: gpus = [] below [host]"
_FOLDER_HINT: Final = (
    "the Leader makes the log's folder, for the group that [transport] names: start the Leader "
    "first, and this agent as a member of that group (root becomes one)"
)
_KAFKA_HINT: Final = "`pointillist agent doctor` tries each broker of [transport.kafka]"
DEFAULT_CONFIG: Final = Path("/etc/pointillist/agent.toml")
AgentConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; else /etc/pointillist/agent.toml.")
]


def load_file(path: Path, key_file: Path | None = None) -> AgentConfig:
    """Read a configuration file.

    key_file    a key that is to follow host.key_file
    """
    # An analyst's machine draws recordings, and has no package of an agent.
    from edge_agent.bound_gpus import with_bound_gpus
    from edge_agent.config import load_config
    from edge_agent.membership import with_key

    need_file(path, "the agent's configuration", _HINT)
    with reported(ExitCode.USAGE, ConfigError, hint=sample_hint("agent.toml")):
        config = load_config(path)
    if key_file is not None:
        config = with_key(config, key_file)
    return with_bound_gpus(config)


def log_hint(config: AgentConfig) -> str:
    return _FOLDER_HINT if config.transport.kafka is None else _KAFKA_HINT


def gpus_here() -> tuple[ListedGpu, ...]:
    """List this machine's GPUs, to bind a key to; call it as the agent."""
    from edge_agent.bound_gpus import GpusUnready, gpus_here

    with reported(ExitCode.UNAVAILABLE, GpusUnready, hint=_GPUS_HINT):
        return gpus_here()


def bind_gpus(config: AgentConfig) -> AgentConfig:
    """Bind the host's key to its GPUs where that is still to be done; call it as the agent."""
    from edge_agent.bound_gpus import GpusUnready, bind_gpus

    with reported(ExitCode.UNAVAILABLE, GpusUnready, hint=_GPUS_HINT):
        return bind_gpus(config)


def become_agent(config: AgentConfig) -> None:
    """Give root up before a key is opened; the folders are the agent's own."""
    from collectors.bpf.perf_events import begin_opener
    from collectors.bpf.uprobes import end_needless_opener

    try:
        prepare_transport(config.transport.settings, Side.AGENT)
        if os.geteuid() == 0:
            ensure_users()
            # The folders above are root's, and the agent must get through them.
            os.umask(0o022)
            config.host.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            give(config.host.state_dir, config.host.user)
        os.umask(0o077)
        by_events = os.geteuid() == 0 and "CAP_PERFMON" in config.sources.capabilities
        if by_events:
            begin_opener()
        dropped = drop_to(config.host.user, keep_caps=config.sources.capabilities)
        why = end_needless_opener() if by_events and dropped.changed else ""
        kept = f"; a child with CAP_SYS_ADMIN opens perf events, as {why}" if why else ""
        say(f"{dropped.line}{kept}")
        keep_in(config.host.state_dir)
    except LookupError as error:
        message = f"host.user: expected a user of this machine, got {config.host.user!r}"
        raise CommandError(ExitCode.USAGE, message) from error
