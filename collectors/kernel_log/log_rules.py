"""Rules that find broken hardware in the kernel's log; the rules themselves are data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from transport.config_tree import limited, read_tree

from .kernel_log import xid_of

BY_PCI_CLASS: Final = "by_pci_class"
_SUBJECTS: Final = ("device", "interface", "pci")


@dataclass(frozen=True, slots=True)
class Sign:
    """What one message says.

    cell        class of the catalogue; "by_pci_class": that of the device at `subject`; None: the
                fault of this name and subject is over, or it is no fault of hardware
    interface   the subject is a network interface
    """

    name: str
    subject: str
    cell: str | None
    interface: bool = False


def _ascii_pattern(text: Any) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except (TypeError, re.error) as error:
        raise ValueError(f"expected a regular expression, got {text!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class LogRule:
    """A pattern, the fault it shows, and a message that it must fit."""

    name: str
    pattern: re.Pattern[str] = field(metadata={"read": _ascii_pattern})
    example: str
    cell: str | None = limited(None, key="class")

    def __post_init__(self) -> None:
        if self.pattern.match(self.example) is None:
            raise ValueError(f"expected a pattern that fits the example {self.example!r}")


@dataclass(frozen=True, slots=True)
class LogRules:
    """All of the file; `xids` is code -> class, `anywhere` the codes that do not tell the place."""

    rules: tuple[LogRule, ...]
    xids: dict[int, str]
    anywhere: frozenset[int]

    def sign(self, message: str) -> Sign | None:
        """Read one message; None where it shows nothing."""
        xid = xid_of(message)
        if xid is not None:
            address, code = xid
            return Sign(f"xid_{code}", address.lower(), self.xids.get(code))
        for rule in self.rules:
            found = rule.pattern.match(message)
            if found is not None:
                named = found.groupdict()
                kind = next(one for one in _SUBJECTS if named.get(one))
                return Sign(rule.name, named[kind], rule.cell, interface=kind == "interface")
        return None


@dataclass(frozen=True, slots=True)
class _RulesFile:
    rules: tuple[LogRule, ...] = limited(key="rule")
    xid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@cache
def load_rules() -> LogRules:
    """Read the shipped rules. Raises ValueError for a rule that does not fit its own example."""
    file = read_tree(_RulesFile, Path(__file__).with_name("log_rules.toml"))
    codes = dict(file.xid)
    anywhere = frozenset(codes.pop("anywhere"))
    by_code = {code: cell for cell, listed in codes.items() for code in listed}
    return LogRules(file.rules, by_code, anywhere)
