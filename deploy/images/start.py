#!/usr/bin/python3
"""Start a role in a container: bring what was mounted into the shape that it insists on.

pointillist-start party [--keys DIR] [--signed DIR] [--secrets DIR] -- COMMAND...
pointillist-start agent --node NAME [--secrets DIR] -- COMMAND...

A mounted secret belongs to root and is a link, and the roles refuse key files that are not their
own, 0600. So secrets are copied into a folder in memory first, and a party's identity into the
folder of its keys. An agent besides gets an identity of its own, and a place on the roster by the
token of its node; each once, later starts find them.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

SECRETS = Path("/run/secrets/pointillist")
OWN_SECRETS = Path("/run/pointillist/secrets")
CONFIG = Path("/etc/pointillist/agent.toml")
STATE = Path("/var/lib/pointillist/agent")
TOKENS = Path("/run/secrets/tokens")
AGENT_USER = "pointillist-agent"


class StartRefused(Exception):
    """The container cannot do its work as it was started; says what was expected."""


def own_secrets(given: Path, own: Path, uid: int, gid: int) -> list[Path]:
    """Copy secrets so that they are this user's alone; names that begin with a dot are left.

    given   the mounted folder; where there is none, nothing is copied
    Returns the copies
    """
    if not given.is_dir():
        return []
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chown(own, uid, gid, follow_symlinks=False)
    copies = []
    for secret in sorted(given.iterdir()):
        if secret.name.startswith(".") or not secret.is_file():
            continue
        copy = own / secret.name
        copy.unlink(missing_ok=True)
        handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchown(file.fileno(), uid, gid)
            file.write(secret.read_bytes())
        copies.append(copy)
    return copies


def place_identity(secrets: Path, keys: Path) -> None:
    """Copy a party's identity beside the sealing keys that it makes every day.

    Raises  StartRefused where another identity lies there: the state beside it is that one's
    """
    given, placed = secrets / "identity.key", keys / "identity.key"
    if not given.exists():
        raise StartRefused("expected identity.key among the secrets, got none")
    content = given.read_bytes()
    if placed.exists():
        if placed.read_bytes() != content:
            raise StartRefused(f"{placed}: expected the identity among the secrets, got another")
        placed.chmod(0o600)
        return
    keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Whole or not at all: a start that was cut off must leave no identity that the next refuses.
    partial = keys / ".identity.key.new"
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(placed)


def keep_folder(folder: Path) -> None:
    """Take a mounted folder in memory, to which all may write, for root alone.

    The agent's secrets are copied into it: whoever could write there would choose what they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o755)


def prepare_agent(node: str) -> None:
    """Make the identity and ask to be enrolled, where not done before.

    With `gpus = "auto"` the join binds the identity to the GPUs of this host, and fails as long as
    no driver lists those that there are.

    Raises  StartRefused
    """
    STATE.mkdir(parents=True, exist_ok=True)
    keys = STATE / "keys"
    if not (keys / "host" / "identity.key").exists():
        _run("pointillist", "keys", "generate", "host", "--folder", str(keys))
    asked = STATE / "asked"
    token = TOKENS / f"{node}.token"
    if asked.exists():
        return
    if not token.is_file():
        raise StartRefused(f"expected a token of this node, {token}; `pointillist operator vouch`")
    _run("pointillist", "agent", "join", "--config", str(CONFIG), "--token-file", str(token),
         "--wait-s", "0")  # fmt: skip
    asked.touch()


def _run(*command: str) -> None:
    """Run a command of the product; what it says goes to the container's log."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise StartRefused(f"`{' '.join(command[:3])}` ended with {done.returncode}, see above")


def main() -> None:
    """Prepare, then become the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("party", "agent"))
    parser.add_argument("--secrets", type=Path, default=SECRETS, help="the mounted secrets")
    parser.add_argument("--keys", type=Path, help="a party's key_dir, which gets identity.key")
    parser.add_argument("--signed", type=Path, help="its signed_dir, made where it is not there")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="this node's name")
    parser.add_argument("command", nargs="+", help="what to run then, behind --")
    given = parser.parse_args()
    command = given.command
    uid, gid = os.getuid(), os.getgid()
    try:
        if given.role == "agent":
            user = pwd.getpwnam(AGENT_USER)
            uid, gid = user.pw_uid, user.pw_gid
            keep_folder(OWN_SECRETS.parent)
        own_secrets(given.secrets, OWN_SECRETS, uid, gid)
        if given.role == "agent":
            prepare_agent(given.node)
        elif given.keys is not None:
            place_identity(OWN_SECRETS, given.keys)
        if given.signed is not None:
            given.signed.mkdir(parents=True, exist_ok=True)
    except (StartRefused, OSError) as error:
        sys.exit(f"pointillist-start: {error}")
    found = shutil.which(command[0])
    if found is None:
        sys.exit(f"pointillist-start: {command[0]}: expected a program of this image, found none")
    os.execv(found, command)  # noqa: S606  the arguments are the container's own


if __name__ == "__main__":
    main()
