"""`pointillist operator`: an operator's key, and vouchers for the hosts that it runs."""

from __future__ import annotations

import json as json_module
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from privacy.signing import SigningKey
from transport.files.keyfiles import KeyFileExists, write_signing_key
from transport.files.private_files import JoinToken, write_token
from wire.fields import NAME

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    LeaderKey,
    emit,
    examples,
    need_file,
    reported,
    usage_error,
)
from .party import load_identity, public_key

_EXAMPLES = examples("""
pointillist operator keygen acme.key --name acme   prints what Leader and Helper pin
pointillist operator vouch host-1.token host-2.token --key acme.key --name acme --plan fleet \
--leader 00aa...   one token a host
pointillist operator vouch --hosts names.txt --folder tokens --key acme.key --name acme \
--plan fleet --leader 00aa...   the tokens of many""")

DAY_S: Final = 86_400
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_NAME: Final = 200
_EXISTS = "a key or token is never overwritten; name another file"

app = typer.Typer(
    help="Who runs hosts: its key, and vouchers for them.", epilog=_EXAMPLES, no_args_is_help=True
)

NameOption = Annotated[str, typer.Option("--name", help="The operator, as a roster names it.")]


@app.command(epilog="Example: pointillist operator keygen acme.key --name acme >> helper.toml")
def keygen(
    file: Annotated[Path, typer.Argument(help="The key's file, 0600; a new one.")],
    name: NameOption,
    json: JsonFlag = False,
) -> None:
    """Make an operator's Ed25519 key, and print the table `operator` that pins it.

    Its lines go into the Leader's plans file and, over another way, into the Helper's helper.toml:
    the Helper believes no host that a pinned key has not signed for. The key stays with you.
    """
    _need_name(name, "--name")
    key = SigningKey.generate()
    with reported(ExitCode.USAGE, KeyFileExists), _writable(file):
        write_signing_key(file, key)
    public = key.public_bytes.hex()
    lines = f'\n[[operator]]\nname = {json_module.dumps(name)}\nkey = "{public}"'
    emit({"file": str(file), "name": name, "key": public}, json, text=lines)


@app.command(
    epilog="Example: pointillist operator vouch host-1.token --key acme.key --name acme "
    "--plan fleet --leader 00aa..."
)
def vouch(
    key: Annotated[Path, typer.Option("--key", help="The operator's key.")],
    name: NameOption,
    plan: Annotated[str, typer.Option(help="Name of a plan in the Leader's plans file.")],
    leader: LeaderKey,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Token files to make, one for each host.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(help="Or: names of hosts, one a line (- reads stdin); NAME.token for each."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where --hosts puts the tokens.")] = Path(),
    days: Annotated[
        int, typer.Option(help="How long a host may be enrolled with it.", min=1, max=366)
    ] = 30,
    json: JsonFlag = False,
) -> None:
    """Vouch for hosts: make a one-use token for each.

    A token goes to one host of yours (`agent join --token-file`) and signs there what the host
    says of itself. It never crosses the log, and whoever has it can enrol one host in your name.
    """
    for text, option in ((name, "--name"), (plan, "--plan")):
        _need_name(text, option)
    signing, leader_pk = load_identity(key), public_key(leader)
    not_after = int(time.time()) + days * DAY_S
    wanted = [*(files or []), *_named(hosts, folder)]
    if not wanted:
        raise usage_error("expected token files, or --hosts, got neither", "one token a host")
    for file in wanted:
        if file.exists():
            raise usage_error(f"{file}: exists", _EXISTS)
    for file in wanted:
        with _writable(file):
            write_token(file, JoinToken.issue(signing, name, plan, leader_pk, not_after))
    body = {"tokens": len(wanted), "operator": name, "plan": plan, "not_after": not_after}
    emit(body, json)


def _named(hosts: Path | None, folder: Path) -> list[Path]:
    if hosts is None:
        return []
    if str(hosts) != "-":
        need_file(hosts, "names of hosts, one a line", "write it, or give - and pipe them")
    text = sys.stdin.read() if str(hosts) == "-" else hosts.read_text(encoding="utf-8")
    names = text.split()
    for name in names:
        if len(name) > _MAX_NAME or _HOST_NAME.fullmatch(name) is None:
            raise usage_error(
                f"--hosts: expected names like {_HOST_NAME.pattern}, at most {_MAX_NAME} "
                f"characters, got {name[:_MAX_NAME]!r}"
            )
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise usage_error(f"--hosts: expected each host once, got {twice[0]} twice")
    with _writable(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [folder / f"{name}.token" for name in names]


def _need_name(text: str, option: str) -> None:
    if NAME.fullmatch(text) is None:
        raise usage_error(f"{option}: expected a name like {NAME.pattern}, got {text!r}")


@contextmanager
def _writable(file: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise usage_error(f"{file}: exists", _EXISTS) from error
    except OSError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"{file}: {error.strerror}") from error
