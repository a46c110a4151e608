"""`pointillist agent`: run the agent of this host, read and recover its ledger, enrol the host."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pointillist.samples import sample_hint

from .agent_attach import EPILOG as ATTACH_EPILOG
from .agent_attach import attach
from .agent_diagnose import EPILOG as DIAGNOSE_EPILOG
from .agent_diagnose import diagnose
from .agent_doctor import EPILOG as DOCTOR_EPILOG
from .agent_doctor import doctor
from .agent_health import health
from .agent_history import EPILOG as HISTORY_EPILOG
from .agent_history import history
from .agent_join import EPILOG as JOIN_EPILOG
from .agent_join import join
from .agent_profile import EPILOG as PROFILE_EPILOG
from .agent_profile import profile
from .agent_rekey import REKEY_EPILOG, RETIRE_EPILOG, rekey, retire
from .agent_run import Options, run_agent
from .agent_sent import EPILOG as SENT_EPILOG
from .agent_sent import sent
from .agent_top import EPILOG as TOP_EPILOG
from .agent_top import top
from .agent_web import EPILOG as WEB_EPILOG
from .agent_web import web
from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    need_file,
    refused,
    reported,
    say,
    usage_error,
)

if TYPE_CHECKING:
    from edge_agent.config import AgentConfig

_EXAMPLES = """Examples:

pointillist agent join --config agent.toml --token-file token   have this host enrolled

pointillist agent run --config agent.toml   until SIGTERM or Ctrl-C

pointillist agent doctor   what can be collected here, and what to do about the rest

pointillist agent top   this host, live; what is shown never leaves it

pointillist agent web --open   this host in a browser; only its owner is let in

pointillist agent diagnose --live   why was it slow

pointillist agent history --since 10m   raw data of the last day

pointillist agent sent   what left this host, report by report

pointillist agent profile --pid 4711 --out calls.pb.gz   GPU calls of one process, for pprof

pointillist agent attach   what a GPU program needs, to have its kernels timed

pointillist agent ledger show --config agent.toml --json   what this host has spent

pointillist agent ledger recover --config agent.toml   after the ledger was lost"""

_HINT: Final = f"name it with --config; {sample_hint('agent.toml')}"

app = typer.Typer(
    help="The agent of this host: run it, see what it sees.", epilog=_EXAMPLES,
    rich_markup_mode="rich", no_args_is_help=True,
)  # fmt: skip
ledger_app = typer.Typer(
    help="The privacy ledger of this host: show it, recover it.", no_args_is_help=True
)
app.add_typer(ledger_app, name="ledger")
app.command(epilog=DOCTOR_EPILOG)(doctor)
app.command(epilog=TOP_EPILOG)(top)
app.command(epilog=WEB_EPILOG)(web)
app.command(epilog=DIAGNOSE_EPILOG)(diagnose)
app.command(epilog=HISTORY_EPILOG)(history)
app.command(epilog=SENT_EPILOG)(sent)
app.command(epilog=PROFILE_EPILOG)(profile)
app.command(epilog=ATTACH_EPILOG)(attach)
app.command(epilog=JOIN_EPILOG)(join)
app.command(epilog=REKEY_EPILOG)(rekey)
app.command(epilog=RETIRE_EPILOG)(retire)
app.command(epilog="Example: pointillist agent health --machine nd96isr_h100_v5 --json")(health)

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", help="TOML file; `pointillist sample show` prints one."),
]


@app.command(epilog="Example: pointillist agent run --config /etc/pointillist/agent.toml")
def run(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file; else /etc/pointillist/agent.toml."),
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="The host's key.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Ledger, spool, history.")] = None,
    log_folder: Annotated[Path | None, typer.Option(help="Folder of the embedded log.")] = None,
    leader: Annotated[list[str] | None, typer.Option(help="A Leader's key, hex; repeat.")] = None,
    helper: Annotated[list[str] | None, typer.Option(help="A Helper's key, hex; repeat.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Model of a GPU; repeat.")] = None,
    gpu_uuid: Annotated[list[str] | None, typer.Option(help="Its GPU-...; repeat.")] = None,
    replay: Annotated[list[Path] | None, typer.Option(help="A trace to play; repeat.")] = None,
    loader: Annotated[
        str | None,
        typer.Option(help="Kernel-level metrics by eBPF, through auto, libbpf or bcc."),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other key: section.key=value; repeat."),
    ] = None,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C; SIGHUP reloads sources and log level.

    Options stand above the file, and can do without one. The agent logs to stderr, never a
    measurement; it refuses demo tasks and seeded noise. Started as root it becomes the configured
    user before it opens a key.
    """
    options = Options(
        config, key_file, state_dir, log_folder, gpu or (), gpu_uuid or (), leader or (),
        helper or (), replay or (), loader, assign or (),
    )  # fmt: skip
    run_agent(options, _become_agent)


@ledger_app.command(epilog="Example: pointillist agent ledger show --json | jq .peak_of_a_week")
def show(
    config: ConfigOption = Path("/etc/pointillist/agent.toml"), json: JsonFlag = False
) -> None:
    """Show what this host has spent, also while the agent runs."""
    from edge_agent.ledger.ledger_errors import LedgerNone, LedgerRefused
    from edge_agent.live import read_ledger
    from privacy.budget import Entry, peak, spent_at

    loaded = _load(config)
    _become_agent(loaded)  # SQLite may make files beside the ledger: they must be the agent's
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.USAGE, LedgerNone):
        view = read_ledger(loaded)
    entries: list[Entry] = [entry for host in view.hosts for entry in host.entries]
    now_s = int(time.time())
    counts = Counter(entry.series for entry in entries)
    body = {
        "hosts": [host.host_id.hex() for host in view.hosts],
        "epochs_counted_to": max((host.epoch_ctr for host in view.hosts), default=0),
        "spent_in_the_last_week": _part(_millionths(spent_at(entries, now_s - 604_800)), json),
        "peak_of_a_week": _part(_millionths(peak(entries)), json),
        "series": [
            {
                "series": version.series,
                "version": version.version,
                "weight_millionths": version.weight_millionths,
                "window_s": version.window_s,
                "windows_kept": counts[version.series],
                "last_window": max(
                    (e.start for e in entries if e.series == version.series), default=0
                ),
            }
            for version in view.series.values()
        ],
        "frozen_until": view.freeze_until_s if view.freeze_until_s > now_s else None,
    }
    emit(body, json)


def _millionths(cost: Fraction) -> float:
    """Round a cost up, so that what is shown is never below what was spent."""
    return float(-(-cost * 1_000_000 // 1)) / 1_000_000


def _part(spent: float, json: bool) -> float | str:
    """A part of the week's budget: as a number for scripts, in words for people."""
    return spent if json else f"{100 * spent:.4g} % of a week's budget"


@ledger_app.command(epilog="Example: pointillist agent ledger recover --config agent.toml --yes")
def recover(
    config: ConfigOption = Path("/etc/pointillist/agent.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonFlag = False,
) -> None:
    """Start a new ledger after the old one was lost, without spending anything twice.

    Series that the signed roster and tasks name resume with the first window that starts after
    now; for two weeks no new series and no larger weight is taken. The old files are kept aside.
    """
    from edge_agent.ledger.ledger import Ledger
    from edge_agent.ledger.ledger_errors import LedgerFull, LedgerRefused
    from edge_agent.live import load_host, this_machine
    from edge_agent.protocol.recovery import read_signed_past
    from transport.keyfiles import mark_ledger
    from transport.opening import Side, open_transport

    loaded = _load(config)
    _become_agent(loaded)
    binding = this_machine(loaded)
    host = load_host(loaded, binding)
    if not yes:
        if not sys.stdin.isatty():
            raise usage_error(
                "recovery asks first, and there is no terminal to ask at",
                "read `pointillist agent ledger recover --help`, then add --yes",
            )
        typer.confirm(f"Set the ledger of host {host.host_id.hex()} aside?", abort=True, err=True)
    with open_transport(loaded.transport.settings, Side.AGENT) as log:
        past = read_signed_past(log, host.host_id, loaded.trust.pins)
    if not past.known:
        raise refused(
            "no roster and task signed by the pinned parties name this host",
            "let the Leader publish its roster and tasks, then try again",
        )
    now_s = int(time.time())
    # First: where a crash strikes between the old files and the new ones the key alone tells of a
    # ledger, and without it the agent would begin one with a whole budget.
    mark_ledger(loaded.host.key_file, binding)
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.UNAVAILABLE, LedgerFull):
        ledger = Ledger.recover(
            loaded.ledger_file, loaded.fence_file, hosts=[host.host_id], binding=binding,
            now_s=now_s, signed_time_s=past.signed_time_s, known=past.known,
        )  # fmt: skip
    view = ledger.view([host.host_id])
    ledger.close()
    emit(
        {
            "host": host.host_id.hex(),
            "series": [version.series for version in past.known],
            "resumes_after": view.resume_after_s,
            "frozen_until": view.freeze_until_s,
            "set_aside": f"{loaded.ledger_file}.lost-{now_s}",
        },
        json,
    )


def load_file(path: Path) -> AgentConfig:
    """Read a configuration file for another command of this group."""
    return _load(path)


def become_agent(config: AgentConfig) -> None:
    """Give root up for another command of this group."""
    _become_agent(config)


def _load(path: Path) -> AgentConfig:
    from edge_agent.config import load_config
    from transport.config_tree import ConfigError

    need_file(path, "the agent's configuration", _HINT)
    with reported(ExitCode.USAGE, ConfigError, hint=sample_hint("agent.toml")):
        return load_config(path)


def _become_agent(config: AgentConfig) -> None:
    """Give root up before a key is opened; the folders are the agent's own."""
    from transport.opening import Side, prepare_transport
    from transport.ownership import give
    from transport.privileges import drop_to, ensure_users

    try:
        prepare_transport(config.transport.settings, Side.AGENT)
        if os.geteuid() == 0:
            ensure_users()
            # The folders above are root's, and the agent must get through them.
            os.umask(0o022)
            config.host.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            give(config.host.state_dir, config.host.user)
        os.umask(0o077)
        say(drop_to(config.host.user, keep_caps=config.sources.capabilities).line)
    except LookupError as error:
        message = f"host.user: expected a user of this machine, got {config.host.user!r}"
        raise CommandError(ExitCode.USAGE, message) from error
