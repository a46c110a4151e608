"""`pointillist alerts`: tell Alertmanager or a webhook of drifts, causes and incidents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import platformdirs
import typer

from aggregator.state.state_file import StorageUnavailable
from pointillist.alerts.alert import Alert, AlertsConfig, load_alerts_config
from transport.settings.config import ConfigError

from .output import ExitCode, JsonFlag, emit, examples, reported, say, unavailable, usage_error

if TYPE_CHECKING:
    from pointillist.alerts.sending import AlertOutbox

_EXAMPLES = examples("""
pointillist alerts check --store releases --config alerts.toml         every minute, until Ctrl-C
pointillist alerts check --store releases --config alerts.toml --once  for a timer of systemd
pointillist alerts check --journal state/diagnoses.jsonl --config alerts.toml   of an agent
`pointillist sample show alerts.toml` prints every key.""")

app = typer.Typer(
    help="Tell Alertmanager or a webhook.", epilog=_EXAMPLES,
    no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback()
def alerts() -> None:
    """Drifts and causes of a fleet, from releases; incidents of a host's jobs, from its journal."""


@app.command("check", epilog=_EXAMPLES)
def check(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file.")],
    store: Annotated[
        Path | None, typer.Option(help="The Leader's folder of released Parquet.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="This host's journal of diagnoses, which says whose job is slow."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="File of what was told to whom; else in this user's data folder."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    json: JsonFlag = False,
) -> None:
    """Look for what is worth telling, and tell it: each fact once, and none lost.

    Of a fleet, changes of the newest period against the one before, at a false-discovery rate of
    1 % in each section. Of a host, incidents by job and owner: a journal is its operator's own, so
    send it to that operator's own receiver. What a receiver does not take is kept and sent again;
    with --once the exit code is then 4. Looking costs no privacy budget.
    """
    from pointillist.alerts.sending import AlertOutbox, OutboxUnusable, receivers, taken
    from pointillist.alerts.sending import check as check_once

    if (store is None) == (journal is None):
        raise usage_error("expected --store or --journal, one of them")
    with reported(ExitCode.USAGE, ConfigError):
        loaded = load_alerts_config(config)
    kept = state or Path(platformdirs.user_data_dir("pointillist")) / "alerts" / "outbox.json"
    with ExitStack() as held:
        with reported(ExitCode.UNAVAILABLE, OutboxUnusable, OSError):
            held.enter_context(taken(kept))
            outbox = AlertOutbox.load(kept)
        while True:
            with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
                found = _found(outbox, loaded, store, journal)
                done = check_once(outbox, found, receivers(loaded), time.time)
            if once or done.new or done.sent or done.away:
                line = f"{done.new} new, {done.sent} sent, {done.waiting} wait"
                emit(done, json, "\n".join([line, *done.away]))
            if once:
                if done.waiting:
                    raise unavailable(f"{done.waiting} alerts wait: {'; '.join(done.away)}")
                return
            time.sleep(loaded.every_s)


def _found(
    outbox: AlertOutbox, config: AlertsConfig, store: Path | None, journal: Path | None
) -> Sequence[Alert]:
    import duckdb

    from aggregator.releases.releases import QueryRefused

    try:
        if journal is not None:
            from pointillist.alerts.sending import journal_alerts

            return journal_alerts(journal, config, outbox)
        from analytics import connect
        from pointillist.alerts.facts import fleet_alerts

        assert store is not None  # noqa: S101  (one of the two)
        with reported(ExitCode.USAGE, ValueError), connect(store) as fleet:
            return list(fleet_alerts(fleet, config.fleet))
    except (OSError, QueryRefused, duckdb.Error) as error:
        say(f"cannot be read now: {error}")
        return []
