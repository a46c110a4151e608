"""What the running kernel is."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Final

VMLINUX: Final = Path("/sys/kernel/btf/vmlinux")


def kernel_version(release: str | None = None) -> tuple[int, int]:
    """Give (major, minor) of the running kernel."""
    numbers = re.findall(r"\d+", release or platform.release())
    return int(numbers[0]), int(numbers[1])
