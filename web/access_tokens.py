"""Who looks, and which series they may see; tokens, of which a file keeps hashes alone."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wire.fields import NAME
from wire.task import DEMO_DOMAIN

from .page_shape import Role
from .store_watch import SeriesState

FLEET_DOMAIN: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks: the token's name and role; an operator's name where that is the role."""

    name: str
    role: Role
    operator: str | None = None


LOCAL: Final = Viewer("local", Role.LOCAL)


@dataclass(frozen=True, slots=True)
class SeriesOwners:
    """Whose a series is, where the store does not say it.

    fleet      series of fleet tasks: their releases are of hosts of three operators at least, and
               are made for everybody
    operators  operator -> series of its own operator tasks, which are released to it alone
    """

    fleet: frozenset[str] = frozenset()
    operators: Mapping[str, frozenset[str]] | None = None

    def __post_init__(self) -> None:
        seen: dict[str, str] = dict.fromkeys(self.fleet, "the fleet")
        for operator, series in (self.operators or {}).items():
            for name in series:
                if name in seen:
                    raise ValueError(
                        f"series {name!r}: expected one owner, got {seen[name]} and {operator}"
                    )
                seen[name] = operator

    def visible(self, viewer: Viewer, series: Iterable[SeriesState]) -> frozenset[str] | None:
        """Give the series that a viewer may see; None: all. One of unknown owner is none."""
        if viewer.role is Role.LOCAL:
            return None
        own = (self.operators or {}).get(viewer.operator or "", frozenset())
        others = {name for names in (self.operators or {}).values() for name in names}
        mixed = {
            one.name
            for one in series
            if one.name in self.fleet
            or (one.domain in {FLEET_DOMAIN, DEMO_DOMAIN} and one.name not in others)
        }
        return frozenset(mixed | own)


_PREFIX: Final = "plst_"
_SECRET_BYTES: Final = 32
_MOST_BYTES: Final = 1 << 20
_MOST_TOKENS: Final = 10_000


class TokenFileRefused(ValueError):
    """A file of tokens that cannot be trusted; the message says why."""


class AccessToken(BaseModel):
    """What is kept of a token.

    sha256      hex, of the whole token; it has 256 random bits, so no slow hash is needed
    expires_s   unix seconds from which on it opens nothing
    operator    whose own series it shows; for the role operator alone
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    role: Literal[Role.ANALYST, Role.OPERATOR, Role.AUDITOR]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    expires_s: int
    operator: Annotated[str | None, Field(pattern=f"^{NAME.pattern}$")] = None

    @model_validator(mode="after")
    def _whose(self) -> Self:
        if (self.role is Role.OPERATOR) != (self.operator is not None):
            raise ValueError("expected an operator's name for the role operator, and for it alone")
        return self

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.name, self.role, self.operator)


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    tokens: Annotated[list[AccessToken], Field(max_length=_MOST_TOKENS)]


def new_token(
    name: str, role: Role, expires_s: int, operator: str | None = None
) -> tuple[AccessToken, str]:
    """Make a token: what is kept of it, and the secret. Raises TokenFileRefused."""
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    kept = {"name": name, "role": role, "sha256": _hash(secret), "expires_s": expires_s}
    try:
        return AccessToken.model_validate({**kept, "operator": operator}), secret
    except ValidationError as error:
        raise TokenFileRefused(f"token {_first(error)}") from error


def read_tokens(path: Path) -> list[AccessToken]:
    """Read a file of tokens, if any. Raises TokenFileRefused, also where others may read it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    if status.st_mode & 0o077:
        raise TokenFileRefused(f"{path}: expected mode 0600, got {status.st_mode & 0o777:04o}")
    if len(text) > _MOST_BYTES:
        raise TokenFileRefused(f"{path}: expected at most {_MOST_BYTES} bytes, got more")
    try:
        return _TokenFile.model_validate_json(text).tokens
    except ValidationError as error:
        raise TokenFileRefused(f"{path}: expected a file of tokens; {_first(error)}") from error


def write_tokens(path: Path, tokens: Sequence[AccessToken]) -> None:
    """Put a file of tokens in place, whole, for this user alone."""
    if len({token.name for token in tokens}) != len(tokens):
        raise TokenFileRefused("tokens: expected names that differ, got one twice")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_TokenFile(format=1, tokens=list(tokens)).model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class TokenBook:
    """The tokens of a file, read again when it changes: a revoked one opens nothing any more."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._lock = Lock()
        self._read_at: tuple[int, int] | None = None
        self._tokens: list[AccessToken] = []

    def viewer(self, secret: str) -> Viewer | None:
        """Find who holds a token in force; all are compared, in constant time.

        Raises      TokenFileRefused, OSError: then nobody is let in
        """
        asked = _hash(secret)
        found = [t for t in self._current() if hmac.compare_digest(t.sha256, asked)]
        return found[0].viewer if found and found[0].expires_s > self._now() else None

    def _current(self) -> list[AccessToken]:
        with self._lock:
            try:
                status = self._path.stat()
                at = status.st_mtime_ns, status.st_ino
            except FileNotFoundError:
                at = None
            if at != self._read_at or at is None:
                self._tokens = read_tokens(self._path)
                self._read_at = at
            return self._tokens


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _first(error: ValidationError) -> str:
    """What is wrong first, and where; not what stands there."""
    found = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, found['loc'])) or 'it'}: {found['msg']}"
