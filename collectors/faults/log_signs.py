"""From what a look or the kernel's log shows to what is new: faults begin and end, errors grow."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from collectors.kernel_files import Tree
from collectors.kernel_log import (
    BY_PCI_CLASS,
    KMSG,
    KernelLog,
    LogRules,
    Sign,
    load_rules,
)

from .scan import (
    ADDRESS,
    INTERFACES,
    OTHER_CLASS,
    UNLISTED,
    Count,
    FailedReading,
    Finding,
    State,
    class_of,
    switched_on,
)

MOST_SUBJECTS: Final = 16_384
"""Counters and states that are remembered; the one not seen for longest is forgotten first."""
REPEAT_NS: Final = 3_600_000_000_000
"""A fault that stands is told again each hour, so that each window in which it stood has it."""
DAY_NS: Final = 86_400_000_000_000
_WRAP: Final = 1 << 32

Key = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FaultChanges:
    """What one look brought: faults to report, what is over, and new errors by counter."""

    faults: tuple[State, ...]
    cleared: tuple[Key, ...]
    deltas: dict[Key, int]


@dataclass(slots=True)
class _Counter:
    value: int
    level: float = 0.0
    """A bucket that leaks `per_day` a day: above that many the errors are a fault."""
    at_ns: int = 0


@dataclass(slots=True)
class _Standing:
    seen_good: bool = False
    told_ns: int | None = None


@dataclass(slots=True)
class Tracker:
    _counters: OrderedDict[Key, _Counter] = field(default_factory=OrderedDict)
    _states: OrderedDict[Key, _Standing] = field(default_factory=OrderedDict)

    def follow(self, findings: Iterable[Finding], now_ns: int) -> FaultChanges:
        """Compare a look with the one before it; the first value of a counter is its baseline."""
        faults: list[State] = []
        cleared: list[Key] = []
        deltas: dict[Key, int] = {}
        looked: set[Key] = set()
        whole = True
        for found in findings:
            looked.add((found.name, found.subject))
            match found:
                case Count():
                    grown = self._grown(found, now_ns)
                    if grown:
                        deltas[found.name, found.subject] = grown
                        faults += self._over(found, grown, now_ns)
                case State():
                    faults += self._stands(found, now_ns)
                    cleared += self._ends(found)
                case FailedReading():
                    whole = whole and found.name != UNLISTED
        if whole:
            cleared += self._gone(looked)
        return FaultChanges(tuple(faults), tuple(cleared), deltas)

    @property
    def standing(self) -> tuple[Key, ...]:
        return tuple(key for key, state in self._states.items() if state.told_ns is not None)

    def _grown(self, found: Count, now_ns: int) -> int:
        known = self._counters.get((found.name, found.subject))
        if known is None:
            _remember(self._counters, (found.name, found.subject), _Counter(found.value, 0, now_ns))
            return 0
        self._counters.move_to_end((found.name, found.subject))
        before, known.value = known.value, found.value
        if found.value >= before:
            return found.value - before
        if before >= _WRAP * 3 // 4 and before < _WRAP and found.value < _WRAP // 4:
            return found.value + _WRAP - before  # the kernel's 32 bits went round
        return found.value  # set back to zero: what it shows came since

    def _over(self, found: Count, grown: int, now_ns: int) -> list[State]:
        if found.cell is None:
            return []
        known = self._counters[found.name, found.subject]
        leaked = found.per_day * (now_ns - known.at_ns) / DAY_NS
        known.level, known.at_ns = max(0.0, known.level - leaked) + grown, now_ns
        if known.level <= found.per_day:
            return []
        return [State(found.name, found.subject, found.cell, True, f"{grown} new")]

    def _stands(self, found: State, now_ns: int) -> list[State]:
        key = (found.name, found.subject)
        known = self._states.get(key)
        if known is None:
            known = _Standing(seen_good=found.from_start)
            _remember(self._states, key, known)
        self._states.move_to_end(key)
        known.seen_good = known.seen_good or not found.bad
        if not found.bad or not known.seen_good:
            return []
        if known.told_ns is not None and now_ns - known.told_ns < REPEAT_NS:
            return []
        known.told_ns = now_ns
        return [found]

    def _ends(self, found: State) -> list[Key]:
        known = self._states[found.name, found.subject]
        if found.bad or known.told_ns is None:
            return []
        known.told_ns = None
        return [(found.name, found.subject)]

    def _gone(self, looked: set[Key]) -> list[Key]:
        """End what stood on a device that is no longer there; a failed reading ends nothing."""
        gone = [key for key in self.standing if key not in looked]
        for key in gone:
            del self._states[key]
        return gone


def _remember(kept: OrderedDict[Key, T], key: Key, value: T) -> None:
    kept[key] = value
    if len(kept) > MOST_SUBJECTS:
        kept.popitem(last=False)


# Machine checks in the kernel's log: which were uncorrected, and of memory or of a processor.
#
# Source: Intel SDM volume 3B, chapter 16 (layout of IA32_MCi_STATUS); the kernel's x86 mce and AMD
# EDAC decoder.

MACHINE_CHECK: Final = "machine_check"
_PREFIX: Final = r"(?:mce: )?\[Hardware Error\]: "
_PLAIN: Final = re.compile(
    _PREFIX + r"CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: [0-9a-f]{1,16} "
    r"Bank \d{1,3}: (?P<status>[0-9a-f]{16})\b",
    re.ASCII,
)
_AMD: Final = re.compile(
    _PREFIX + r"CPU:(?P<cpu>\d{1,5}) \([0-9a-f:]{1,16}\) MC\d{1,3}_STATUS\[[^\]]{0,80}\]: "
    r"0x(?P<status>[0-9a-f]{16})\b",
    re.ASCII,
)
_AMD_UNIT: Final = re.compile(
    _PREFIX + r"(?P<unit>[A-Z][\w /,-]{0,60}?) Ext\. Error Code: \d{1,3}", re.ASCII
)
_UNCORRECTED: Final = 1 << 61
_MEMORY_MASK: Final = 0xEF80
_MEMORY: Final = 0x0080
"""Compound error code 000F 0000 1MMM CCCC: a memory controller's. F only says "filtered"."""
_AMD_MEMORY_UNIT: Final = "Unified Memory Controller"


class MachineChecks:
    """Reads messages in their order: AMD's decoder names the unit some lines after the status."""

    def __init__(self) -> None:
        self._amd_cpu: str | None = None

    def sign(self, message: str) -> Sign | None:
        if "[Hardware Error]: " not in message[:40]:
            return None
        if found := _PLAIN.match(message):
            return _judge(found["cpu"], int(found["status"], 16))
        if found := _AMD.match(message):
            uncorrected = int(found["status"], 16) & _UNCORRECTED
            self._amd_cpu = found["cpu"] if uncorrected else None
        elif (found := _AMD_UNIT.match(message)) and self._amd_cpu is not None:
            cpu, self._amd_cpu = self._amd_cpu, None
            memory = found["unit"].startswith(_AMD_MEMORY_UNIT)
            return Sign(MACHINE_CHECK, f"cpu{cpu}", "system_memory" if memory else "cpu")
        return None


def _judge(cpu: str, status: int) -> Sign | None:
    if not status & _UNCORRECTED:
        return None
    memory = status & _MEMORY_MASK == _MEMORY
    return Sign(MACHINE_CHECK, f"cpu{cpu}", "system_memory" if memory else "cpu")


MOST_READS: Final = 1_000
"""Records read at a time: /dev/kmsg gives one a read, and keeps the rest for the next time."""
MOST_SIGNS: Final = 64
QUIET_NS: Final = 60_000_000_000
"""A fault of one device is told once in this time: a dying disk logs thousands a second."""
_MOST_TOLD: Final = 1_024
_SRAM: Final = "xid_172"


class LogSigns:
    """Faults of the log from its opening on; what was logged before is not told again."""

    def __init__(self, tree: Tree, log: Path = KMSG) -> None:
        """Open the log at its end. Raises OSError."""
        self._tree = tree
        self._log = KernelLog(log, from_now=True)
        self._rules: LogRules = load_rules()
        self._checks = MachineChecks()
        self._told: OrderedDict[Sign, int] = OrderedDict()
        self.suppressed = 0

    @property
    def counters(self) -> dict[str, int]:
        return {
            "log_records_lost": self._log.lost,
            "log_lines_malformed": self._log.malformed,
            "log_faults_suppressed": self.suppressed,
        }

    def read(self, now_ns: int) -> tuple[list[State], list[Key]]:
        """Give what was logged since the last call. Raises OSError."""
        faults: list[State] = []
        cleared: list[Key] = []
        for sign in self._fresh(self._signs(self._log.read(MOST_READS)), now_ns):
            if sign.cell is None:
                cleared.append((sign.name, sign.subject))
            else:
                cell = sign.cell
                if cell == BY_PCI_CLASS:
                    known = ADDRESS.fullmatch(sign.subject)
                    cell = class_of(self._tree, sign.subject) if known else OTHER_CLASS
                faults.append(State(sign.name, sign.subject, cell, True, "kernel log"))
        return faults, cleared

    def close(self) -> None:
        """Let the log go."""
        self._log.close()

    def _signs(self, messages: Iterable[str]) -> list[Sign]:
        found = [
            sign
            for message in messages
            if (sign := self._checks.sign(message) or self._rules.sign(message))
            and (not sign.interface or self._is_link(sign))
        ]
        # A code that names the SRAM says where the unspecific one beside it was.
        placed = {sign.subject for sign in found if sign.name == _SRAM}
        vague = {f"xid_{code}" for code in self._rules.anywhere}
        return [fault for fault in found if not (fault.name in vague and fault.subject in placed)]

    def _is_link(self, sign: Sign) -> bool:
        if not self._tree.exists(f"{INTERFACES}/{sign.subject}/device"):
            return False
        return sign.cell is None or switched_on(self._tree, sign.subject) is not False

    def _fresh(self, signs: Iterable[Sign], now_ns: int) -> Iterator[Sign]:
        given = 0
        for sign in signs:
            if sign.cell is None and sign.name.startswith("xid_"):
                continue  # an application's own doing
            told_ns = self._told.get(sign)
            if given >= MOST_SIGNS or (told_ns is not None and now_ns - told_ns < QUIET_NS):
                self.suppressed += 1
                continue
            given += 1
            self._told[sign] = now_ns
            self._told.move_to_end(sign)
            if len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
            yield sign
