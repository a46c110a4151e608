"""Machine checks in the kernel's log: which were uncorrected, and of memory or of a processor.

Source: Intel SDM volume 3B, chapter 16 (layout of IA32_MCi_STATUS); the kernel's x86 mce and AMD
EDAC decoder.
"""

from __future__ import annotations

import re
from typing import Final

from collectors.kernel_log.log_rules import Sign

NAME: Final = "machine_check"
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
        """Give the fault that a message shows; a corrected error is none."""
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
            return Sign(NAME, f"cpu{cpu}", "system_memory" if memory else "cpu")
        return None


def _judge(cpu: str, status: int) -> Sign | None:
    if not status & _UNCORRECTED:
        return None
    memory = status & _MEMORY_MASK == _MEMORY
    return Sign(NAME, f"cpu{cpu}", "system_memory" if memory else "cpu")
