"""Read TOML into trees of frozen dataclasses; an unknown key is an error. Addresses, too."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from transport.process.listening import loopback
from transport.process.printable import printable

_T = TypeVar("_T")

_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text in quotes",
    bytes: "lower-case hex in quotes",
    Path: "a path in quotes",
    re.Pattern: "a regular expression in quotes",
}

_MOST_ITEMS: Final = 1 << 20
_SAID_CHARS: Final = 80
_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ConfigError(ValueError):
    """A configuration that cannot be used; says where, what was expected and what came."""


class FieldLimits(TypedDict, total=False):
    """What a field may hold beyond its type: metadata of the field.

    Where a field holds several values, all but `fewest`, `most` and `key` hold for each.

    low, high     bounds of a number, both included
    choices       all that it may be
    form          regular expression that fits the whole of a text
    fewest, most  items of an array
    key           name in the file, where the field has another
    read          makes the value of what TOML has; a ValueError says what was expected and came
    """

    low: float
    high: float
    choices: tuple[Any, ...]
    form: str
    fewest: int
    most: int
    key: str
    read: Callable[[Any], Any]


def limited(default: Any = dataclasses.MISSING, **limits: typing.Unpack[FieldLimits]) -> Any:
    """Declare a field with what it may hold; without a default it is required."""
    return dataclasses.field(default=default, metadata=limits)


def build(
    kind: type[_T],
    table: Mapping[str, Any],
    where: str = "",
    *,
    error: type[ValueError] = ConfigError,
    file_format: int | None = None,
) -> _T:
    """Build a dataclass from a table: sections are dataclasses, arrays are tuples or frozen sets.

    kind         its `former_keys`, where it has such, are refused with their advice
    where        what stands before each key in a message: `FILE: `, `FILE: section.`
    file_format  what the key `format` has to say; None: there is no such key
    Raises       error
    """
    try:
        if file_format is not None:
            found = _said(table["format"]) if "format" in table else "nothing"
            if found != str(file_format):
                raise ConfigError(f"{where}format: expected {file_format}, got {found}")
            table = {key: value for key, value in table.items() if key != "format"}
        return _build(kind, table, where)
    except ConfigError as problem:
        raise error(str(problem)) from problem.__cause__


def did_you_mean(got: object, known: Iterable[str]) -> str:
    """Name the known word that is nearest to what came, in brackets; empty where none is near."""
    import difflib  # of use to no file that is right

    asked = isinstance(got, str) and len(got) <= _SAID_CHARS
    close = difflib.get_close_matches(str(got), list(known), n=1) if asked else []
    return f" (did you mean {close[0]!r}?)" if close else ""


@cache
def _keys_of(kind: Any) -> Mapping[str, tuple[dataclasses.Field[Any], Any]]:
    """Give key -> (field, type) of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {
        field.metadata.get("key", field.name): (field, _without_none(hints[field.name]))
        for field in dataclasses.fields(kind)
        if field.init
    }


def _without_none(hint: Any) -> Any:
    """Leave out None; beside words of their own (`Literal`) there may be one type more."""
    if isinstance(hint, types.UnionType) and not _words_of(hint):
        return next(one for one in typing.get_args(hint) if one is not types.NoneType)
    return hint


def _words_of(hint: Any) -> tuple[str, ...]:
    """Give words that may stand in place of a value: `tuple[str, ...] | Literal["auto"]`."""
    if typing.get_origin(hint) not in {types.UnionType, typing.Union}:
        return ()
    literals = [one for one in typing.get_args(hint) if typing.get_origin(one) is typing.Literal]
    return tuple(word for one in literals for word in typing.get_args(one))


def _build(kind: type[_T], table: Any, where: str) -> _T:
    place = where.removesuffix(".").removesuffix(": ") or "configuration"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: expected a table, got {_said(table)}")
    keys = _keys_of(typing.cast(Any, kind))
    former: Mapping[str, str] = getattr(kind, "former_keys", {})
    for key in table:
        if key in former:
            raise ConfigError(f"{where}{key} is gone: {former[key]}")
        if key not in keys:
            raise _unknown(key, keys, where)
    values = {}
    for key, (field, hint) in keys.items():
        if key in table:
            values[field.name] = _value(hint, field.metadata, table[key], f"{where}{key}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            expected = _expected(hint, field.metadata)
            raise ConfigError(f"{where}{key}: expected {expected}, got nothing")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def _unknown(key: str, known: Iterable[str], where: str) -> ConfigError:
    return ConfigError(
        f"{where}{_key(key)}: unknown key{did_you_mean(key, known)}; "
        f"expected one of {', '.join(known)}"
    )


def _value(hint: Any, limits: Mapping[str, Any], value: Any, where: str) -> Any:
    if words := _words_of(hint):
        if value in words:
            return value
        if isinstance(value, str):
            raise ConfigError(f"{where}: expected {_expected(hint, limits)}, got {_said(value)}")
        hint = typing.get_args(hint)[0]
    origin = typing.get_origin(hint)
    if origin in {tuple, frozenset}:
        return origin(_items(hint, limits, value, where))
    if origin is Mapping:
        return _mapping(hint, limits, value, where)
    if "read" in limits:
        try:
            return limits["read"](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, f"{where}.")
    return value if hint is Any else _scalar(origin or hint, limits, value, where)


def _items(hint: Any, limits: Mapping[str, Any], value: Any, where: str) -> Iterator[Any]:
    fewest, most = limits.get("fewest", 0), limits.get("most", _MOST_ITEMS)
    if not isinstance(value, list) or not fewest <= len(value) <= most:
        raise ConfigError(f"{where}: expected {_expected(hint, limits)}, got {_said(value)}")
    inner = typing.get_args(hint)[0]
    for place, item in enumerate(value):
        yield _value(inner, limits, item, f"{where}[{_name_of(item) or place}]")


def _name_of(row: Any) -> str:
    """Give the name by which a row of an array of tables is found sooner than by its number."""
    name = row.get("id", row.get("name")) if isinstance(row, Mapping) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else ""


def _mapping(hint: Any, limits: Mapping[str, Any], value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table, got {_said(value)}")
    names, inner = typing.get_args(hint)
    if issubclass(names, StrEnum):
        for key in value:
            if key not in set(names):
                raise _unknown(key, names, f"{where}.")
    return {
        names(key): _value(inner, limits, item, f"{where}.{_key(key)}")
        for key, item in value.items()
    }


def _scalar(hint: Any, limits: Mapping[str, Any], value: Any, where: str) -> Any:
    try:
        made = _made(hint, value)
        fits = _fits(made, limits)
        why = ""
    except (KeyError, TypeError, ValueError, re.error) as error:
        fits, why = False, f" ({error})" if isinstance(error, re.error) else ""
    if fits:
        return made
    if hint is bytes and isinstance(value, str):
        raise ConfigError(f"{where}: expected {_WORDS[bytes]}, got other text")  # may be a key
    why = why or did_you_mean(value, _choices(hint, limits))
    raise ConfigError(f"{where}: expected {_expected(hint, limits)}, got {_said(value)}{why}")


def _made(hint: Any, value: Any) -> Any:
    """Make the value of a type. Raises KeyError, TypeError, ValueError or re.error."""
    given: Any = {float: int | float, bool: bool, int: int}.get(hint, str)
    # bool is an int to Python; to a reader of a configuration it is not.
    if not isinstance(value, given) or (isinstance(value, bool) and hint is not bool):
        raise TypeError
    if hint is bytes:
        return bytes.fromhex(value)
    if issubclass(hint, IntEnum):
        return hint[value.upper()]
    return re.compile(value) if hint is re.Pattern else hint(value)


def _choices(hint: Any, limits: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the words that a key may have: a numbered enum is named by its members."""
    if issubclass(hint, IntEnum):
        return tuple(member.name.lower() for member in hint)
    return tuple(map(str, limits.get("choices") or (hint if issubclass(hint, StrEnum) else ())))


def _fits(made: Any, limits: Mapping[str, Any]) -> bool:
    choices, form = limits.get("choices"), limits.get("form")
    if choices is not None and made not in choices:
        return False
    if form is not None and not re.fullmatch(form, made):
        return False
    low, high = limits.get("low"), limits.get("high")
    return (low is None or low <= made) and (high is None or made <= high)


def _expected(hint: Any, limits: Mapping[str, Any]) -> str:
    if words := _words_of(hint):
        return " or ".join([_expected(typing.get_args(hint)[0], limits), *map(json.dumps, words)])
    origin = typing.get_origin(hint) or hint
    if origin in {tuple, frozenset}:
        return f"an array{_bounds(' of', limits.get('fewest'), limits.get('most'), 'or more')}"
    if origin is Mapping or dataclasses.is_dataclass(origin):
        return "a table"
    if choices := _choices(origin, limits):
        return f"one of {', '.join(choices)}"
    if "form" in limits:
        return f"text like {limits['form']}"
    return f"{_WORDS[origin]}{_bounds(' from', limits.get('low'), limits.get('high'), 'up')}"


def _bounds(between: str, low: float | None, high: float | None, more: str) -> str:
    if low is None:
        return "" if high is None else f"{between} at most {_number(high)}"
    if low == high:
        return f"{between} {_number(low)}"
    return f"{between} {_number(low)} {more if high is None else f'to {_number(high)}'}"


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _said(value: Any) -> str:
    """Say a value as a TOML file would: no secret stands in a configuration, only paths to them."""
    if isinstance(value, Mapping):
        return "a table"
    try:
        return json.dumps(value, default=str)[:_SAID_CHARS]
    except ValueError:  # TOML's hexadecimal numbers have no end, Python's decimal ones do
        return "a number of thousands of digits"


def _key(key: str) -> str:
    """Write a key that came: one that TOML takes only in quotes is a stranger's text."""
    return key if _NAME.fullmatch(key) else json.dumps(key)[:_SAID_CHARS]


MOST_BYTES: Final = 1 << 20


def read_table(
    path: Path,
    *,
    error: type[ValueError] = ConfigError,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """Read a TOML file, of MOST_BYTES at most. Raises error, OSError."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    return parse_table(content, str(path), error=error, parse_float=parse_float)


def parse_table(
    content: bytes,
    where: str,
    *,
    error: type[ValueError] = ConfigError,
    most: int = MOST_BYTES,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """Read TOML, which may be a stranger's and is called `where`. Raises error."""
    if len(content) > most:
        raise error(f"{where}: expected at most {most:,} bytes, got more")
    try:
        return tomllib.loads(content.decode(), parse_float=parse_float)
    except RecursionError:
        raise error(f"{where}: expected TOML, got arrays or tables nested too deep") from None
    except ValueError as problem:  # of UTF-8, of TOML, and of numbers with thousands of digits
        raise error(f"{where}: expected TOML: {printable(str(problem))}") from problem


def read_tree(
    kind: type[_T],
    path: Path,
    *,
    error: type[ValueError] = ConfigError,
    file_format: int | None = None,
) -> _T:
    """Build a dataclass of a TOML file. Raises error, also where it cannot be read."""
    try:
        table = read_table(path, error=error)
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    return build(kind, table, f"{path}: ", error=error, file_format=file_format)


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one tree of tables over another: tables are merged, anything else is replaced."""
    merged = {**below, **above}
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = overlay(old, value)
    return merged


def assignment(text: str) -> dict[str, Any]:
    """Read `section.key=value`, the value as in TOML or a bare word. Raises ConfigError."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"expected section.key=value, got {text!r}")
    try:
        return tomllib.loads(f"{path.strip()} = {value.strip()}")
    except tomllib.TOMLDecodeError:
        quoted = json.dumps(value.strip())
    try:
        return tomllib.loads(f"{path.strip()} = {quoted}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"expected section.key=value, got {text!r}: {error}") from None


_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]")
_PORT: Final = re.compile("[1-9][0-9]{0,4}")
_SCHEMES: Final = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")
"""What gRPC takes for the kind of an address, not for a host's name."""
OWN_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names by which a page of this machine's own is asked for: another site whose name is made to lead
here is none of them."""


class ListenRefused(ValueError):
    """An address that cannot be listened on as it was asked for; says what is missing."""


def host_port(value: Any) -> str:
    """Give an address as it came. Raises ValueError where it is not a host and a port."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise ValueError(f"expected host:port, got {json.dumps(value, default=str)[:80]}")
    return str(value)


def channel_address(value: Any) -> str:
    """Give a channel's address as it came. Raises ValueError where gRPC reads another kind."""
    host = host_port(value).rpartition(":")[0]
    if host.lower() in _SCHEMES:
        raise ValueError(
            f"expected host:port with a host's name or address, got {json.dumps(value)}, which is "
            "another kind of address to gRPC"
        )
    return str(value)


def optional_address(value: Any) -> str:
    """Give the address of a channel, or empty text where there is none. Raises ValueError."""
    return "" if value == "" else channel_address(value)


def host_name(value: str) -> str:
    """Give the host of `host` or `host:port`. Raises ValueError."""
    if _HOST.fullmatch(value):
        return value
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    try:
        return host_port(value).rpartition(":")[0]
    except ValueError:
        said = json.dumps(value)[:80]
        raise ValueError(f"expected a host's name or address, got {said}") from None


def asked_name(header: str) -> str:
    """Give the name of a Host header without its port, lower case; IPv6 in its brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def listen_address(text: str, port: int, names: str = "") -> tuple[str, int]:
    """Read HOST:PORT, HOST or :PORT; IPv6 stands in brackets.

    port        where none is said
    names       what is said of a host's name, which cannot be listened on
    Returns     a numeric address, loopback where no host is said or `localhost` is
    Raises      ListenRefused
    """
    host, _, said = text.rpartition(":") if ":" in text.removeprefix("[").partition("]")[2] or (
        ":" in text and "[" not in text
    ) else (text, "", "")  # fmt: skip
    host = host.removeprefix("[").removesuffix("]")
    number = port if not said else int(said) if said.isascii() and said.isdecimal() else -1
    if not 0 <= number <= 65_535 or (":" in host and "[" not in text):
        raise ListenRefused(f"--listen: expected HOST:PORT ([::1]:{port} for IPv6), got {text!r}")
    if host in {"", "localhost"}:
        return loopback(), number
    if not is_address(host):
        raise ListenRefused(
            f"--listen: expected an address of this machine, such as 127.0.0.1:{port} or "
            f"[::1]:{port}, got {text!r}{names}"
        )
    return host, number


def is_address(host: str) -> bool:
    """Say whether it is a numeric address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
