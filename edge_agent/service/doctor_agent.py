"""Checks of what the agent itself needs: identity, ledger, folders, and the way out."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from typing import Final

from edge_agent.config import AgentConfig
from edge_agent.ledger.ledger_errors import LedgerRefused
from edge_agent.ledger.ledger_rows import read_view
from edge_agent.live import this_machine
from edge_agent.local.history_db import HistoryUnavailable, file_bytes, open_readonly
from transport.files.keyfiles import KeyFileRefused, load_host_key, machine_id
from transport.process.doctor_findings import Check, CheckVerdict, Finding
from transport.process.listening import loopback, why_not
from transport.process.machine_findings import log_finding

from .self_metrics import CHOOSE_PORT

_SPARE_BYTES: Final = 64 << 20
_RECOVER: Final = "pointillist agent ledger recover"


def agent_checks(
    config: AgentConfig, started_by_root: bool = False
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks of one configuration; an agent started by root makes its own folder."""
    yield "agent", "machine id", _machine
    yield "agent", "key", lambda: _key(config)
    yield "agent", "ledger", lambda: _ledger(config)
    yield "agent", "state folder", lambda: _state(config, started_by_root)
    yield "agent", "history", lambda: _history(config)
    yield "agent", "counters", lambda: _counters(config)
    yield "transport", "transport", lambda: log_finding(config.transport)


def _machine() -> Finding:
    try:
        machine_id()
    except KeyFileRefused as error:
        return _broken("machine id", str(error), "systemd-machine-id-setup")
    return _ok("machine id", "present")


def _key(config: AgentConfig) -> Finding:
    path = config.host.key_file
    if not path.exists():
        advice = "`pointillist keys generate host`, then `pointillist agent join`"
        return _broken("key", f"expected {path}, found none", advice)
    try:
        load_host_key(path, this_machine(config))
    except KeyFileRefused as error:
        found, do = error.parts
        return _broken("key", found, do or "`pointillist keys check`, or a new identity and a join")
    return _ok("key", f"{path} belongs to this machine")


def _ledger(config: AgentConfig) -> Finding:
    if not config.ledger_file.exists():
        if config.fence_file.exists():
            line = f"expected {config.ledger_file}, of which the fence knows"
            return _broken("ledger", line, _RECOVER)
        return _ok("ledger", "none yet; the first start makes it")
    try:
        view = read_view(config.ledger_file)
    except LedgerRefused as error:
        return _broken("ledger", str(error), _RECOVER)
    return _ok("ledger", f"{len(view.series)} series known")


def _state(config: AgentConfig, started_by_root: bool) -> Finding:
    folder, name = config.host.state_dir, "state folder"
    if started_by_root and not folder.exists():
        return _ok(name, f"{folder}: none yet; the first start makes it")
    if not folder.is_dir():
        advice = f"start the agent once as root, or make {folder}, 0700"
        return _broken(name, f"expected {folder}, found none", advice)
    if not os.access(folder, os.W_OK | os.X_OK):
        line = f"{folder} cannot be written by this user"
        return _broken(name, line, f"give {folder} to the user {config.host.user}")
    spare = shutil.disk_usage(folder).free
    line = f"{folder}, {spare >> 20} MiB free"
    if spare < _SPARE_BYTES:
        return _broken(name, line, "make room: a ledger that cannot be written spends nothing")
    return _ok(name, line)


def _history(config: AgentConfig) -> Finding:
    if not config.history.enabled:
        return _absent("history", "switched off", "history.enabled = true in the configuration")
    if not config.history_file.exists():
        return _ok("history", "none yet; the agent makes it")
    try:
        open_readonly(config.history_file).close()
    except HistoryUnavailable as error:
        return _absent("history", str(error), f"move {config.history_file} away")
    kept, most = file_bytes(config.history_file), config.history.max_bytes
    return _ok("history", f"{kept >> 20} of at most {most >> 20} MiB")


def _counters(config: AgentConfig) -> Finding:
    section = config.metrics
    if not section.enabled or section.port == 0:
        return _ok("counters", "on a free port, see the log" if section.enabled else "off")
    taken = why_not(loopback(), section.port, CHOOSE_PORT)
    if taken is not None and taken.errno == errno.EADDRINUSE and config.live_socket.exists():
        return _ok("counters", f"port {section.port} is served; an agent runs")
    if taken is not None:
        return _absent("counters", str(taken), taken.hint)
    return _ok("counters", f"port {section.port} on loopback is free")


def _ok(name: str, found: str) -> Finding:
    return Finding("agent", name, CheckVerdict.OK, found)


def _absent(name: str, found: str, do: str) -> Finding:
    return Finding("agent", name, CheckVerdict.ABSENT, found, do)


def _broken(name: str, found: str, do: str) -> Finding:
    return Finding("agent", name, CheckVerdict.BROKEN, found, do)
