"""`pointillist agent ledger`: what this host has spent, and a new ledger after one was lost."""

from __future__ import annotations

import sys
import time
from collections import Counter
from fractions import Fraction

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .output import ConfigOption, ExitCode, JsonFlag, YesFlag, emit, refused, reported, usage_error

app = typer.Typer()
ledger_app = typer.Typer(
    help="The privacy ledger of this host: show it, recover it.", no_args_is_help=True
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command(epilog="Example: pointillist agent ledger show --json | jq .peak_of_a_week")
def show(config: ConfigOption = DEFAULT_CONFIG, json: JsonFlag = False) -> None:
    """Show what this host has spent, also while the agent runs."""
    from edge_agent.ledger.ledger_records import LedgerNone, LedgerRefused
    from edge_agent.live import read_ledger
    from privacy.budget import Entry, peak, spent_at

    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)  # SQLite makes files beside the ledger: the agent's own
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
    config: ConfigOption = DEFAULT_CONFIG,
    yes: YesFlag = False,
    json: JsonFlag = False,
) -> None:
    """Start a new ledger after the old one was lost, without spending anything twice.

    Series that the signed roster and tasks name resume with the first window that starts after
    now; for two weeks no new series and no larger weight is taken. The old files are kept aside.
    """
    from edge_agent.ledger.ledger import Ledger
    from edge_agent.ledger.ledger_records import LedgerFull, LedgerRefused
    from edge_agent.live import load_host, this_machine
    from edge_agent.protocol.roster_book import read_signed_past
    from transport.files.keyfiles import mark_ledger
    from transport.opening import Side, open_transport

    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)
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
        past = read_signed_past(log, host.host_id, loaded.trust)
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
