"""Files of strangers, read up to a bound; of secrets; of roles' users; and tokens to join.

A role owns its folders, so any name in them may have become a symbolic link since root looked. What
changes owner or mode here is what was opened, or the link itself.

A join token is its Ed25519 seed (32 B) and the operator's voucher of its public key, in URL-safe
base64 behind `plst1-`. The seed never leaves the host: it signs the join request.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import errno
import grp
import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from privacy.signing import SEED_BYTES, SigningKey
from wire.join import MAX_VOUCHER_BYTES, Voucher
from wire.rejection import ReportRejected

_NO_FILE: Final = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV}
"""Of links to nothing, links in a circle, sockets."""


class UnfitFile(OSError):
    """What lies there is no file, or too long for one; its `strerror` says which."""


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file of at most so many bytes. Raises UnfitFile, OSError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise UnfitFile(error.errno, error.strerror, str(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnfitFile(errno.EINVAL, "expected a regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise UnfitFile(errno.EFBIG, f"expected at most {most:,} bytes, got more", str(path))
    return content


def read_secret(path: Path, most: int) -> bytes:
    """Read at most so many bytes of a file that others of the machine are kept from.

    Its group may read it. Raises OSError; PermissionError with the way out where others may.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & stat.S_IRWXO:
            why = f"open to every user of this machine (mode {mode:04o}): chmod o= it"
            raise PermissionError(errno.EACCES, why, str(path))
        return file.read(most)


class UnfitToken(ValueError):
    """What lies there is no token that a header of HTTP can hold; it is not quoted."""


def read_token_text(path: Path, most: int) -> str:
    """Read a token of one line of printable ASCII; it may be empty. Raises UnfitToken, OSError.

    HTTP libraries quote a header that they refuse, so that one must not get there.
    """
    token = read_secret(path, most).strip()
    if not token.isascii() or not token.decode("ascii").isprintable():
        raise UnfitToken(
            f"expected a token of one line of printable ASCII in {path}, got other bytes"
        )
    return token.decode("ascii")


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def give(path: Path, user: str, group: str | None = None) -> None:
    """Make a file, folder or link itself a user's own. Raises LookupError, OSError."""
    os.chown(path, *_ids(user, group), follow_symlinks=False)


def set_folder(path: Path, mode: int, user: str | None = None, group: str | None = None) -> None:
    """Give a folder exactly this mode, and an owner where one is named.

    Raises      NotADirectoryError for a symbolic link, too; LookupError, OSError
    """
    handle = os.open(path, _FOLDER)
    try:
        if (user, group) != (None, None):
            os.fchown(handle, *_ids(user, group))
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _ids(user: str | None, group: str | None) -> tuple[int, int]:
    """Numbers of a user and a group; -1 leaves what is."""
    return (
        -1 if user is None else pwd.getpwnam(user).pw_uid,
        -1 if group is None else grp.getgrnam(group).gr_gid,
    )


_PREFIX: Final = "plst1-"
_MAX_CHARS: Final = len(_PREFIX) + (SEED_BYTES + MAX_VOUCHER_BYTES + 2) // 3 * 4


class TokenUnusable(ValueError):
    """A token file that holds no token; the message never quotes it."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """The token's key, and what the operator signed about it."""

    signing: SigningKey = field(repr=False)
    voucher: Voucher

    @classmethod
    def issue(
        cls, operator_key: SigningKey, operator: str, plan: str, leader_pk: bytes, not_after: int
    ) -> Self:
        """Draw a token and vouch for it. Raises ReportRejected for a name no roster can carry."""
        signing = SigningKey.generate()
        draft = Voucher(leader_pk, signing.public_bytes, operator, plan, not_after)
        signature = operator_key.sign(draft.unsigned())
        signed = dataclasses.replace(draft, signature=signature)
        return cls(signing, Voucher.decode(signed.encode()))

    def text(self) -> str:
        """Return the line that the host is given."""
        secret = self.signing.seed_bytes() + self.voucher.encode()
        return _PREFIX + base64.urlsafe_b64encode(secret).decode()


def write_token(path: Path, token: JoinToken) -> None:
    """Write a new file that nobody else may read. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token.text() + "\n")


def read_token(path: Path) -> JoinToken:
    """Read a token, without space around it. Raises TokenUnusable, also if others may; OSError."""
    try:
        text = read_secret(path, 2 * _MAX_CHARS).strip()
    except PermissionError as error:
        raise TokenUnusable(f"{path}: {error.strerror}") from error
    return parse_token(text, str(path))


def parse_token(text: bytes, where: str) -> JoinToken:
    """Read a token's line; `where` it stands is what a refusal names. Raises TokenUnusable."""
    expected = f"{where}: expected a token, one line that begins with {_PREFIX}"
    if len(text) > _MAX_CHARS or not text.startswith(_PREFIX.encode()):
        raise TokenUnusable(f"{expected}, got {len(text)} other bytes")
    try:
        raw = base64.b64decode(text[len(_PREFIX) :], altchars=b"-_", validate=True)
        signing = SigningKey.from_seed_bytes(raw[:SEED_BYTES])
        voucher = Voucher.decode(raw[SEED_BYTES:])
    except (binascii.Error, ValueError, ReportRejected):
        raise TokenUnusable(f"{expected}, got one that was cut or changed") from None
    if voucher.token_pk != signing.public_bytes:
        raise TokenUnusable(f"{expected}, got one whose voucher is another token's")
    return JoinToken(signing, voucher)
