"""What the command says and how it ends: exit codes, JSON or text, amounts, errors on stderr.

stdout carries the answer alone, so that it can be piped; everything else goes to stderr.
"""

from __future__ import annotations

import dataclasses
import json as json_module
import os
import re
import stat
import sys
import textwrap
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from transport.process.printable import printable, printable_lines


class ExitCode(IntEnum):
    """Documented in docs/cli.md; scripts may rely on them."""

    OK = 0
    FAILED = 1
    """A check did not hold, or something broke that is known and has no code of its own."""
    USAGE = 2
    """Wrong options, or an input file that cannot be used."""
    REFUSED = 3
    """A privacy rule forbids it; trying again does not help."""
    UNAVAILABLE = 4
    """The world failed (disk, lock, socket, log); trying again may help."""
    UNFORESEEN = 70
    """Nobody foresaw it: a bug, whose details are in a file that the line names."""
    INTERRUPTED = 130


class CommandError(Exception):
    """An error with an exit code and, where there is one, the way out."""

    def __init__(self, code: ExitCode, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def examples(lines: str) -> str:
    """Give the end of a help: each line is a paragraph."""
    return "Examples:" + lines.rstrip().replace("\n", "\n\n")


def usage_error(message: str, hint: str | None = None) -> CommandError:
    return CommandError(ExitCode.USAGE, message, hint)


def refused(message: str, hint: str | None = None) -> CommandError:
    return CommandError(ExitCode.REFUSED, message, hint)


def unavailable(message: str, hint: str | None = None) -> CommandError:
    return CommandError(ExitCode.UNAVAILABLE, message, hint)


JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of text.", show_default=False),
]
"""The type of every command's `json` parameter: `def show(json: JsonFlag = False)`."""
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="TOML file; `pointillist sample show` prints one.")
]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
OpenFlag = Annotated[bool, typer.Option("--open", help="Open it in a browser.")]
LeaderKey = Annotated[str, typer.Option("--leader", help="The Leader's identity key, hex.")]
HelperKey = Annotated[str, typer.Option("--helper", help="The Helper's identity key, hex.")]
FleetSeries = Annotated[
    list[str] | None,
    typer.Option(help="A series of fleet tasks, where the store does not say whose it is."),
]


def confirm(yes: bool, question: str, what: str = "this", way_out: str = "add --yes") -> None:
    """Ask a person before something is destroyed; `yes` answers. Raises CommandError, Abort."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error(f"{what} asks first, and there is no terminal to ask at", way_out)
    typer.confirm(question, abort=True, err=True)


def jsonable(value: Any) -> Any:
    """Turn dataclasses, enums, paths, bytes (hex) and NumPy values into JSON's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(jsonable(k)): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, without importing NumPy here
        return jsonable(value.tolist())
    return str(value)


def emit(obj: Any, json: bool, text: str | Callable[[Any], str | None] | None = None) -> None:
    """Print the answer of a command on stdout: one JSON document, or text.

    obj         a dataclass, mapping, list or scalar
    text        the text, or a function of obj that returns it (or prints it and returns None);
                without it a mapping is printed as aligned `name  value` lines
    """
    if json:
        document = json_module.dumps(jsonable(obj), indent=2, ensure_ascii=False, allow_nan=False)
        typer.echo(_json_for_terminals(document))
        return
    rendered = _lines(obj) if text is None else text(obj) if callable(text) else text
    if rendered is not None:
        typer.echo(printable_lines(rendered))


def _json_for_terminals(document: str) -> str:
    """Escape, as JSON does, what JSON leaves as it is and a terminal acts on: C1, bidi marks."""
    if document.isascii():
        return document
    return "".join(
        c if c.isprintable() or c == "\n" else json_module.dumps(c)[1:-1] for c in document
    )


_TIMES: Final = {
    "time", "since", "said", "window_start", "window_end", "helper_seen", "leader_seen",
    "first_window", "last_window", "effective_from", "expiry",
    "not_before", "not_after", "frozen_until", "resumes_after", "refuses_windows_before",
}  # fmt: skip
"""Names of values that are seconds since 1970; text shows them as dates."""
_LAST_S: Final = 253_402_300_799
"""The last second that a date can name; messages hold later ones, and text shows their number."""


def as_text(name: str, value: Any) -> str:
    """One value for people: times as UTC dates, words for yes, no and nothing."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _TIMES and isinstance(value, int) and value <= _LAST_S:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%SZ}" if value > 0 else "never"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        return ", ".join(as_text("", element) for element in value)
    return printable(str(value))


def _lines(obj: Any) -> str:
    plain = jsonable(obj)
    if isinstance(plain, dict):
        return "\n".join(_named_lines(plain))
    if isinstance(plain, list):
        return "\n".join(as_text("", v) for v in plain)
    return str(plain)


NO_TERMINAL: Final = 1 << 20
"""Columns of a file: there each value stays on its line, for whoever searches it."""


def _named_lines(plain: Mapping[str, Any], indented: int = 0) -> list[str]:
    from pointillist.table import terminal_columns, value_lines

    deeper = indented + 2
    width = max((len(name) for name in plain), default=0)
    lines: list[str] = []
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            lines += [name, *(f"  {line}" for line in _named_lines(value, deeper))]
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(element, dict) for element in value)
        ):
            lines += [name, *(f"  {line}" for line in _columns(value, deeper))]
        else:
            pair = (name.ljust(width), as_text(name, value))
            lines += value_lines([pair], terminal_columns(NO_TERMINAL) - indented)
    return lines


def _columns(rows: list[dict[str, Any]], indented: int) -> list[str]:
    from pointillist.table import Column, table_lines, terminal_columns

    numbers = {n for n, v in rows[0].items() if isinstance(v, int | float) and n not in _TIMES}
    columns = [Column(name, right=name in numbers, folds=name not in numbers) for name in rows[0]]
    cells = [[as_text(column.head, row.get(column.head)) for column in columns] for row in rows]
    return table_lines(columns, cells, terminal_columns() - indented)


def say(message: str) -> None:
    """One line for the person at the terminal, on stderr, so that stdout stays parseable."""
    typer.echo(printable_lines(message), err=True)


def say_prose(message: str, indent: str = "") -> None:
    """Say sentences, on a terminal wrapped at words; a file gets each line whole.

    indent   before lines that go on, and before the first
    """
    if not sys.stderr.isatty():
        say(indent + message)
        return
    from pointillist.table import terminal_columns

    say(wrapped(message, terminal_columns(), indent))


def wrapped(message: str, width: int, indent: str = "") -> str:
    """Wrap each line of a message at its spaces; no path, name or option is broken."""
    lines = (
        textwrap.wrap(
            line, width, initial_indent=indent, subsequent_indent=indent or "  ",
            break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
            drop_whitespace=True,
        ) or [""]
        for line in message.split("\n")
    )  # fmt: skip
    return "\n".join(part for found in lines for part in found)


def open_page(address: str) -> None:
    """Open an address; without a screen say so, as a browser of the terminal would take it."""
    screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not (screen and webbrowser.open(address)):
        say(f"no browser can be opened from here: open {address}")


def started(body: Mapping[str, str]) -> None:
    """Print one line of JSON for whoever started a server: it is listening."""
    sys.stdout.write(f"{json_module.dumps(body)}\n")
    sys.stdout.flush()


def die(error: CommandError, json: bool = False) -> NoReturn:
    """Print an error with its hint on stderr (a JSON document with --json) and exit."""
    if json:
        body = {"error": str(error), "hint": error.hint, "exit_code": int(error.code)}
        typer.echo(_json_for_terminals(json_module.dumps(body, ensure_ascii=False)), err=True)
    else:
        say_prose(f"pointillist: {error}")
        if error.hint:
            say_prose(error.hint, "  ")
    sys.exit(int(error.code))


def need_file(path: Path, what: str, hint: str) -> Path:
    """The path of a file that must be there; else an error that names what it should be."""
    try:
        found = "" if stat.S_ISREG(path.stat().st_mode) else "is no file"  # PermissionError is told
    except (FileNotFoundError, NotADirectoryError):
        found = "there is no such file"
    if found:
        raise usage_error(f"{path}: expected {what}, {found}", hint)
    return path


def log_to_stderr() -> None:
    """Structured log lines, one JSON document each, on stderr."""
    from transport.process.supervision import log_to_stderr

    log_to_stderr()


@contextmanager
def reported(code: ExitCode, *kinds: type[Exception], hint: str | None = None) -> Iterator[None]:
    """Turn exceptions of these kinds into a `CommandError` with this exit code."""
    try:
        yield
    except kinds as error:
        raise described(code, error, hint) from error


def described(code: ExitCode, error: Exception, hint: str | None = None) -> CommandError:
    """Say what happened, without Python's error numbers, and the way out that the error knows."""
    from transport.process.privileges import way_in

    found = getattr(error, "found", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        found = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return CommandError(code, found, getattr(error, "hint", None) or way_in(error) or hint)


def amount(number: float) -> str:
    """Give bytes with a binary unit: `3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def rate(number: float) -> str:
    """Give a number in at most six characters: `12,345`, `123k`, `1.2M`."""
    if abs(number) < 99_999.5:
        return f"{number:,.1f}" if abs(number) < 99.95 else f"{number:,.0f}"
    if abs(number) < 999_500:
        return f"{number / 1e3:.0f}k"
    return f"{number / 1e6:.1f}M" if abs(number) < 1e9 else f"{number / 1e9:.1f}G"


def age(span_ns: float) -> str:
    """Give a length of time with one unit: `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = span_ns / 1e9
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{seconds:.0f} d"


def span(ms: float) -> str:
    """Give milliseconds with the unit that fits: `0.4 ms`, `402 ms`, `26.0 s`."""
    number, unit = (ms / 1e3, "s") if abs(ms) >= 999.5 else (ms, "ms")
    number = round(number, 1 if abs(number) < 99.95 else None) + 0.0  # no minus before a zero
    return f"{number:,.1f} {unit}" if abs(number) < 99.95 else f"{number:,.0f} {unit}"


def short_bytes(number: float) -> str:
    """Give bytes in at most six characters: `3.2G`, `640K`."""
    for unit in ("B", "K", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.0f}{unit}" if unit == "B" or number >= 100 else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T"


_NS_PER_S: Final = 1_000_000_000
_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def moment(text: str, now_ns: int, option: str) -> int:
    """Read a time: a span before now, ISO 8601 (UTC unless it says otherwise) or Unix seconds."""
    span = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if span:
        return now_ns - int(span[1]) * _SPANS[span[2]] * _NS_PER_S
    if re.fullmatch(r"\d{1,10}(\.\d{1,9})?", text):
        whole, _, part = text.partition(".")
        return int(whole) * _NS_PER_S + int((part or "0").ljust(9, "0"))
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1_000_000) * 1_000
    raise usage_error(f"{option}: expected 10m, 2h, ISO 8601 or Unix seconds, got {text!r}")
