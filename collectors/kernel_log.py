"""The kernel's log: its records with bounds, and the rules, as data, that find broken hardware.

Records are text that others wrote: only what the kernel itself logged counts (facility 0), and
rules match a message from its beginning. Source: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from collectors.records.basics import FailureKind, ReadFailure
from transport.settings.config import limited, read_tree

KMSG: Final = Path("/dev/kmsg")
LONGEST_MESSAGE: Final = 1_024
_HEADER: Final = re.compile(
    rb"(?P<priority>\d{1,10}),(?P<seq>\d{1,20}),(?P<us>\d{1,20}),[^;\n]{0,200};"
)
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})(?: GPU-I:[0-9A-Fa-f]{1,4})?\): (\d{1,4})\b",
    re.ASCII,
)
_READS: Final = 1_000
_MOST_READS: Final = 1 << 18
_RECORD_BYTES: Final = 8_192
"""A read shorter than a record fails; the kernel's own limit is below this."""
_FACILITY_SHIFT: Final = 3


def parse_record(line: bytes) -> tuple[int, str | None] | None:
    """Give a record's number, and its message if the kernel itself logged it; None: no record."""
    header = _HEADER.match(line)
    if header is None:
        return None
    if int(header["priority"]) >> _FACILITY_SHIFT:
        return int(header["seq"]), None
    message = line[header.end() : header.end() + LONGEST_MESSAGE]
    return int(header["seq"]), message.decode("ascii", "replace").rstrip()


class KernelLog:
    """A reader of the log: from its oldest record, or only what comes from now on."""

    def __init__(self, path: Path = KMSG, *, from_now: bool = False) -> None:
        """Open the log. Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._next: int | None = None
        self.at_end = False
        self.lost = 0
        """Records that were overwritten before they were read."""
        self.malformed = 0
        if from_now:
            with suppress(OSError):  # a pipe has no past
                os.lseek(self._fd, 0, os.SEEK_END)

    def read(self, most: int) -> list[str]:
        """Give what at most so many reads find now, without waiting. Raises OSError."""
        records: list[str] = []
        self.at_end = False
        for _ in range(most):
            try:
                part = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                self.at_end = True
                break
            except BrokenPipeError:  # overwritten meanwhile: the next number says how many
                continue
            if not part:
                self.at_end = True
                break
            records += self._records(part)
        return records

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _records(self, part: bytes) -> list[str]:
        """Cut into lines; /dev/kmsg gives whole records, a pipe may cut them anywhere."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > _RECORD_BYTES:
            self._rest = b""
            self.malformed += 1
        found = [self._record(line) for line in lines if line and not line.startswith(b" ")]
        return [record for record in found if record is not None]

    def _record(self, line: bytes) -> str | None:
        record = parse_record(line)
        if record is None:
            self.malformed += 1
            return None
        seq, message = record
        if self._next is not None and seq > self._next:
            self.lost += seq - self._next
        self._next = seq + 1
        return message


def xid_of(message: str) -> tuple[str, int] | None:
    found = _XID.match(message)
    return None if found is None else (found[1], int(found[2]))


def gpu_signs(log: Path = KMSG) -> list[Sign] | ReadFailure:
    """Give what the log still holds of GPUs, oldest first, or why not."""
    rules = load_rules()
    try:
        reader = KernelLog(log)
    except OSError as error:
        return log_failure(log, error)
    found: list[Sign] = []
    try:
        for _ in range(_MOST_READS // _READS):
            signs = map(rules.sign, reader.read(_READS))
            found += [sign for sign in signs if sign is not None and sign.name.startswith(_OF_GPUS)]
            if reader.at_end:
                break
    except OSError as error:
        return log_failure(log, error)
    finally:
        reader.close()
    return found


def log_failure(log: Path, error: OSError) -> ReadFailure:
    if isinstance(error, PermissionError):
        closed = f"{log}: not allowed (root or CAP_SYSLOG reads it)"
        return ReadFailure(FailureKind.NO_PERMISSION, closed)
    return ReadFailure(FailureKind.FAILED, f"{log}: {error.strerror}")


BY_PCI_CLASS: Final = "by_pci_class"
_SUBJECTS: Final = ("device", "interface", "pci")
_OF_GPUS: Final = ("xid_", "gpu_")


@dataclass(frozen=True, slots=True)
class Sign:
    """What one message says; no `cell`: the fault is over, none of hardware, or not known.

    known    False: a code that no list has, in a message that does not say how bad it is
    """

    name: str
    subject: str
    cell: str | None
    interface: bool = False
    known: bool = True


def _ascii_pattern(text: Any) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except (TypeError, re.error) as error:
        raise ValueError(f"expected a regular expression, got {text!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class LogRule:
    name: str
    pattern: re.Pattern[str] = field(metadata={"read": _ascii_pattern})
    example: str
    cell: str | None = limited(None, key="class")

    def __post_init__(self) -> None:
        if self.pattern.match(self.example) is None:
            raise ValueError(f"expected a pattern that fits the example {self.example!r}")


@dataclass(frozen=True, slots=True)
class XidSeverity:
    """What a message says of a code that no list has: patterns, and the class of a fatal one."""

    fatal: re.Pattern[str] = field(metadata={"read": _ascii_pattern})
    passing: re.Pattern[str] = field(metadata={"read": _ascii_pattern})
    cell: str = limited(key="class")


@dataclass(frozen=True, slots=True)
class LogRules:
    """All of the file.

    xids        code -> class
    anywhere    the codes that do not tell the place
    harmless    codes of applications, and of what was corrected
    severity    judges what no list has
    """

    rules: tuple[LogRule, ...]
    xids: dict[int, str]
    anywhere: frozenset[int]
    harmless: frozenset[int]
    severity: XidSeverity

    def sign(self, message: str) -> Sign | None:
        xid = xid_of(message)
        if xid is not None:
            address, code = xid
            cell, known = self.xids.get(code), self.knows(code)
            if not known:
                cell = self.severity.cell if self.severity.fatal.search(message) else None
                known = cell is not None or self.severity.passing.search(message) is not None
            return Sign(f"xid_{code}", address.lower(), cell, known=known)
        for rule in self.rules:
            found = rule.pattern.match(message)
            if found is not None:
                named = found.groupdict()
                kind = next(subject for subject in _SUBJECTS if named.get(subject))
                return Sign(rule.name, named[kind], rule.cell, interface=kind == "interface")
        return None

    def knows(self, code: int) -> bool:
        return code in self.xids or code in self.harmless


@dataclass(frozen=True, slots=True)
class _RulesFile:
    severity: XidSeverity
    rules: tuple[LogRule, ...] = limited(key="rule")
    xid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@cache
def load_rules() -> LogRules:
    """Read the shipped rules. Raises ValueError for a rule that does not fit its own example."""
    file = read_tree(_RulesFile, Path(__file__).with_name("kernel_log.toml"))
    codes = dict(file.xid)
    anywhere, harmless = (frozenset(codes.pop(name)) for name in ("anywhere", "harmless"))
    by_code = {code: cell for cell, listed in codes.items() for code in listed}
    return LogRules(file.rules, by_code, anywhere, harmless, file.severity)
