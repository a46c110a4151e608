"""A one-use join token: a line of text that its operator hands to one host.

The line is the token's Ed25519 seed (32 B) and the operator's voucher of its public key, in
URL-safe base64 behind `plst1-`. The seed never leaves the host: it signs the join request.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from privacy.signing import SEED_BYTES, SigningKey
from wire.join import MAX_VOUCHER_BYTES, Voucher
from wire.rejection import ReportRejected

from .secret_file import read_secret

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
        """Draw a token and vouch for it.

        Raises      ReportRejected for a name that no roster can carry
        """
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
    """Write a new file that nobody else may read.

    Raises      OSError
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token.text() + "\n")


def read_token(path: Path) -> JoinToken:
    """Read a token; white space around it does not count.

    Raises      TokenUnusable, also where every user of the machine may read it; OSError
    """
    try:
        text = read_secret(path, 2 * _MAX_CHARS).strip()
    except PermissionError as error:
        raise TokenUnusable(f"{path}: {error.strerror}") from error
    return parse_token(text, str(path))


def parse_token(text: bytes, where: str) -> JoinToken:
    """Read a token's line; `where` it stands is what a refusal names.

    Raises      TokenUnusable
    """
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
