"""`pointillist operator`: an operator's key, and vouchers for the hosts that it runs."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from .output import CommandError, ExitCode, JsonFlag, emit, reported, usage_error
from .party import load_identity, public_key

_EXAMPLES = """Examples:

pointillist operator keygen acme.key --name acme   prints what Leader and Helper pin

pointillist operator vouch host-1.token host-2.token --key acme.key --name acme --plan fleet \
--leader 00aa...   one token a host"""

DAY_S: Final = 86_400
_EXISTS = "a key or token is never overwritten; name another file"

app = typer.Typer(
    help="Who runs hosts: its key, and vouchers for them.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
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
    from privacy.signing import SigningKey
    from transport.keyfiles import KeyFileExists, write_signing_key

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
    files: Annotated[list[Path], typer.Argument(help="Token files to make, one for each host.")],
    key: Annotated[Path, typer.Option("--key", help="The operator's key.")],
    name: NameOption,
    plan: Annotated[str, typer.Option(help="Name of a plan in the Leader's plans file.")],
    leader: Annotated[str, typer.Option("--leader", help="The Leader's identity key, hex.")],
    days: Annotated[
        int, typer.Option(help="How long a host may be enrolled with it.", min=1, max=366)
    ] = 30,
    json: JsonFlag = False,
) -> None:
    """Vouch for hosts: make a one-use token for each.

    A token goes to one host of yours (`agent join --token-file`) and signs there what the host
    says of itself. It never crosses the log, and whoever has it can enrol one host in your name.
    """
    from transport.join_token import JoinToken, write_token

    for text, option in ((name, "--name"), (plan, "--plan")):
        _need_name(text, option)
    signing, leader_pk = load_identity(key), public_key(leader)
    not_after = int(time.time()) + days * DAY_S
    for file in files:
        with _writable(file):
            write_token(file, JoinToken.issue(signing, name, plan, leader_pk, not_after))
    body = {"tokens": len(files), "operator": name, "plan": plan, "not_after": not_after}
    emit(body, json)


def _need_name(text: str, option: str) -> None:
    from wire.bounds import NAME

    if NAME.fullmatch(text) is None:
        raise usage_error(f"{option}: expected a name like {NAME.pattern}, got {text!r}")


@contextmanager
def _writable(file: Path) -> Iterator[None]:
    """Report a file that cannot be written."""
    try:
        yield
    except FileExistsError as error:
        raise usage_error(f"{file}: exists", _EXISTS) from error
    except OSError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"{file}: {error.strerror}") from error
