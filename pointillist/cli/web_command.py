"""`pointillist web`: pages and an API over released numbers, and the tokens that open them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import platformdirs
import typer

from transport.settings.config import ListenRefused, listen_address

from .output import (
    ExitCode,
    FleetSeries,
    JsonFlag,
    OpenFlag,
    emit,
    examples,
    open_page,
    reported,
    say,
    started,
    usage_error,
)
from .party import pinned_parties, public_key
from .query import ReleasesFolder, default_folder

if TYPE_CHECKING:
    from web.access_tokens import SeriesOwners
    from web.signed_chains import TranscriptFiles


_HELP = """Look at the released numbers in a browser.

Pages and an API over the Leader's folder of released Parquet. Everything is read and nothing is
changed; looking costs no privacy budget, and needs no network.

On this machine it opens without a login. To be reached from elsewhere it takes TLS and tokens, and
it refuses to start without both. There is no OIDC: put tokens into a browser's password field, or
send them as `Authorization: Bearer`.
"""

_EXAMPLES = examples("""
pointillist web --open                          the newest demo run here, in a browser
pointillist web --store /var/lib/pointillist/releases/parquet
pointillist web token --name ada --role analyst --expires 30d
pointillist web token --name acme-1 --role operator --operator acme --expires 90d
pointillist web --store DIR --listen 0.0.0.0:8443 --name fleet.example.org --cert-file web.pem \
--key-file web.key
pointillist web --leader-transcript leader.json --helper-transcript helper.json \
--leader 00aa... --helper 11bb...   the Privacy page has a button that verifies them
curl -s http://127.0.0.1:8765/api/v1/pages | jq .   what there is; /api/v1/openapi.json describes it
""")

app = typer.Typer(
    help="Pages and an API over released numbers.", epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

_LIFE: Final = re.compile(r"([1-9][0-9]{0,3})([hdw])")
_SECONDS: Final = {"h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_S: Final = 366 * 86_400


def _data_file(name: str) -> Path:
    return Path(platformdirs.user_data_dir("pointillist")) / "web" / name


_TOKEN_FILE: Final = typer.Option(
    help="Where hashes of tokens are kept; this user's data folder without it.",
    envvar="POINTILLIST_WEB_TOKENS", show_default=False,
)  # fmt: skip


@app.callback(invoke_without_command=True, help=_HELP, epilog=_EXAMPLES)
def web(
    context: typer.Context,
    store: ReleasesFolder = None,
    rollups: Annotated[
        Path | None,
        typer.Option(
            help="Where roll-ups are kept, for others to share; this user's cache without it.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "localhost:8765",
    name: Annotated[
        list[str] | None, typer.Option(help="A host name that others reach it by; needs TLS.")
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    token_file: Annotated[Path | None, _TOKEN_FILE] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Ask for tokens on this machine, too.")
    ] = False,
    fleet_series: FleetSeries = None,
    operator_series: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATOR=SERIES", help="A series that is one operator's own."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="File that records each query; beside the tokens without.")
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            help="Folder of signed tasks: what series may spend of the budget and what releases "
            "need, on the Privacy page and in /metrics."
        ),
    ] = None,
    leader_transcript: Annotated[
        Path | None,
        typer.Option(help="What the Leader exported: the Privacy page then verifies releases."),
    ] = None,
    helper_transcript: Annotated[Path | None, typer.Option(help="What the Helper did.")] = None,
    leader: Annotated[
        str | None, typer.Option(help="The Leader's identity key, hex, for its signatures.")
    ] = None,
    helper: Annotated[str | None, typer.Option(help="The Helper's, hex.")] = None,
    open_: OpenFlag = False,
    json: JsonFlag = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from web.access_tokens import TokenFileRefused
    from web.web_server import DEFAULT_PORT, WebSettings, serve

    with reported(ExitCode.USAGE, ListenRefused, TokenFileRefused):
        host, port = listen_address(
            listen, DEFAULT_PORT, "; a name that others ask for goes to --name"
        )
        folder = (store or default_folder()).resolve()
        settings = WebSettings(
            folder, rollups or cached_rollups(folder), host, port, tuple(name or ()),
            cert_file, key_file,
            record_file=record or _data_file("queries.jsonl"),
            task_dir=tasks,
            owners=series_owners(fleet_series or [], operator_series or []),
            transcripts=_transcripts(leader_transcript, helper_transcript, leader, helper),
        )  # fmt: skip
        if login or not settings.loopback:
            settings = replace(settings, token_file=token_file or _data_file("tokens.json"))
        serve(settings, lambda address: _started(address, settings.store, open_, json))


def _transcripts(
    leader_file: Path | None, helper_file: Path | None, leader: str | None, helper: str | None
) -> TranscriptFiles | None:
    """Read where both transcripts are, and whose signatures they bear. Raises CommandError."""
    from web.signed_chains import TranscriptFiles

    if leader_file is None and helper_file is None and leader is None and helper is None:
        return None
    if leader_file is None or helper_file is None or leader is None or helper is None:
        named = "--leader-transcript, --helper-transcript, --leader and --helper"
        raise usage_error(f"transcripts: expected {named} together, got some of them")
    parties = pinned_parties(public_key(leader), public_key(helper))
    return TranscriptFiles(leader_file.resolve(), helper_file.resolve(), parties)


def cached_rollups(folder: Path) -> Path:
    name = sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("pointillist")) / "rollups" / name


def _started(address: str, store: Path, open_: bool, json: bool) -> None:
    from aggregator.releases.window_files import NoStore, need_store

    if json:
        started({"address": address, "store": str(store)})
    else:
        say(f"{address}   shows {store}; Ctrl-C ends it")
        try:
            need_store(store)
        except NoStore as error:
            say(f"{error}: the pages fill once it has releases")
        except OSError as error:  # a file, or a folder that is closed to this user
            say(f"{store}: {error.strerror}: the pages fill once it can be read")
    if open_:
        open_page(address)


@app.command("token")
def token(
    name: Annotated[str, typer.Option(help="Whose it is: it stands in the record of queries.")],
    role: Annotated[str, typer.Option(help="analyst, operator or auditor.")],
    expires: Annotated[str, typer.Option(help="When it ends: 12h, 30d, 4w; a year at most.")],
    operator: Annotated[
        str | None, typer.Option(help="With the role operator: whose own series it shows.")
    ] = None,
    token_file: Annotated[Path | None, _TOKEN_FILE] = None,
    json: JsonFlag = False,
) -> None:
    """Make a token and print it, once: only its hash is kept."""
    from web.access_tokens import TokenFileRefused, new_token, read_tokens, write_tokens
    from web.page_shape import Role

    path = token_file or _data_file("tokens.json")
    with reported(ExitCode.USAGE, TokenFileRefused):
        if role not in set(Role) - {Role.LOCAL}:
            raise usage_error(f"--role: expected analyst, operator or auditor, got {role!r}")
        expires_s = int(time.time()) + _life_s(expires)
        made, secret = new_token(name, Role(role), expires_s, operator)
        known = read_tokens(path)
        if any(other.name == name for other in known):
            raise usage_error(
                f"--name: expected a new one, got {name!r}", "`pointillist web revoke` ends it"
            )
        write_tokens(path, [*known, made])
    emit(
        {
            "name": name,
            "role": role,
            "operator": operator,
            "expires": _day(expires_s),
            "token": secret,
        },
        json,
        lambda row: f"{row['token']}\nin force until {row['expires']}; it is not shown again",
    )


@app.command("tokens")
def tokens(token_file: Annotated[Path | None, _TOKEN_FILE] = None, json: JsonFlag = False) -> None:
    """List tokens: name, role, end."""
    from web.access_tokens import TokenFileRefused, read_tokens

    with reported(ExitCode.USAGE, TokenFileRefused):
        known = read_tokens(token_file or _data_file("tokens.json"))
    rows = [
        {"name": t.name, "role": t.role, "operator": t.operator, "expires": _day(t.expires_s)}
        for t in known
    ]
    lines = [
        f"{t.name}  {f'operator {t.operator}' if t.operator else t.role}  until {_day(t.expires_s)}"
        for t in known
    ]
    emit(rows, json, "\n".join(lines) or "no tokens")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")],
    token_file: Annotated[Path | None, _TOKEN_FILE] = None,
) -> None:
    """End a token: a running server lets it in no more."""
    from web.access_tokens import TokenFileRefused, read_tokens, write_tokens

    path = token_file or _data_file("tokens.json")
    with reported(ExitCode.USAGE, TokenFileRefused):
        known = read_tokens(path)
        kept = [token for token in known if token.name != name]
        if len(kept) == len(known):
            raise usage_error(f"expected the name of a token, got {name!r}")
        write_tokens(path, kept)
    say(f"revoked {name}")


def series_owners(fleet: list[str], operators: list[str]) -> SeriesOwners:
    """Read whose series are. Raises CommandError."""
    from web.access_tokens import SeriesOwners

    owned: dict[str, frozenset[str]] = {}
    for text in operators:
        operator, separator, series = text.partition("=")
        if not separator or not operator or not series:
            raise usage_error(f"--operator-series: expected OPERATOR=SERIES, got {text!r}")
        owned[operator] = owned.get(operator, frozenset()) | {series}
    try:
        return SeriesOwners(frozenset(fleet), owned)
    except ValueError as error:
        raise usage_error(str(error)) from error


def _life_s(text: str) -> int:
    found = _LIFE.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise usage_error(f"--expires: expected 1h to 52w, such as 30d, got {text!r}")
    return seconds


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_REPORT_EXAMPLES: Final = examples("""
pointillist report --week --out week.html   of the newest demo run here
pointillist report --week --store releases/parquet --until 2026-11-23 --out week.html
pointillist report --day --out day.html --open""")

report_app = typer.Typer(
    help="Released numbers of a week in one file to send round.",
    invoke_without_command=True, subcommand_metavar="",
)  # fmt: skip


@report_app.callback(epilog=_REPORT_EXAMPLES)
def report(
    out: Annotated[
        Path, typer.Option("--out", help="The file to write; one that is there is replaced.")
    ],
    week: Annotated[bool, typer.Option("--week", help="Of a week; so without another.")] = False,
    day: Annotated[bool, typer.Option("--day", help="Of a day.")] = False,
    eight_weeks: Annotated[bool, typer.Option("--eight-weeks", help="Of eight weeks.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD", help="The day after the last one, UTC; else the newest."
        ),
    ] = None,
    store: ReleasesFolder = None,
    fleet_series: FleetSeries = None,
    open_: OpenFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write the Fleet, Applications, Root causes and Privacy pages into one file of HTML.

    It holds everything that it shows, loads nothing, and prints well. It has what an analyst may
    see: no series that was released to a single operator. Making it costs no privacy budget.
    """
    from web.span_report import ReportRefused, span_report
    from web.store_reading import PageState

    chosen = [
        name
        for name, asked in (("day", day), ("week", week), ("eight_weeks", eight_weeks))
        if asked
    ]
    if len(chosen) > 1:
        raise usage_error("expected one of --day, --week and --eight-weeks")
    try:
        state = PageState.model_validate({"span": (chosen or ["week"])[0], "until": _until(until)})
    except ValueError:
        raise usage_error(
            f"--until: expected a day of the years 1970 to 8999, got {until}"
        ) from None
    folder = (store or default_folder()).resolve()
    owners = series_owners(fleet_series or [], [])
    with reported(ExitCode.UNAVAILABLE, ReportRefused, OSError):
        html = span_report(folder, cached_rollups(folder), state, owners)
        out.write_bytes(html)
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {"file": str(out.resolve()), "bytes": len(html), "span": state.span, "made": made}
    emit(body, json, lambda row: f"{row['file']}, {len(html) / 1000:,.0f} kB")
    if open_:
        open_page(out.resolve().as_uri())


def _until(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise usage_error(f"--until: expected a day such as 2026-11-23, got {text!r}") from None
