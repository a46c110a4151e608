"""Rules that find broken hardware in the kernel's log; the rules themselves are data."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class LogRule:
    """A pattern, the fault it shows, and a message that it must fit."""

    name: str
    pattern: re.Pattern[str]
    cell: str | None
    example: str


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


@cache
def load_rules() -> LogRules:
    """Read the shipped rules. Raises ValueError for a rule that does not fit its own example."""
    text = resources.files(__package__).joinpath("log_rules.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    xids = dict(table["xid"])
    anywhere = frozenset(xids.pop("anywhere"))
    by_code = {code: cell for cell, codes in xids.items() for code in codes}
    return LogRules(tuple(_rule(entry) for entry in table["rule"]), by_code, anywhere)


def _rule(entry: dict[str, Any]) -> LogRule:
    pattern = re.compile(entry["pattern"], re.ASCII)
    rule = LogRule(entry["name"], pattern, entry.get("class"), entry["example"])
    if pattern.match(rule.example) is None:
        raise ValueError(f"log rule {rule.name}: its pattern does not fit {rule.example!r}")
    return rule
