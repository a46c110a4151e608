"""XIDs of the kernel's log: NVML tells only those that come while somebody listens."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from .port import Gap, GapKind

_XID: Final = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})\): (\d{1,4})\b")
_MOST_BYTES: Final = 16 << 20
_RECORD_BYTES: Final = 8_192


def kernel_xids(log: Path = Path("/dev/kmsg")) -> list[tuple[str, int]] | Gap:
    """Give (PCI address, XID) of each that the log still holds, oldest first, or why not."""
    try:
        found = _XID.findall(_content(log))
    except PermissionError:
        return Gap(GapKind.NO_PERMISSION, f"{log}: not allowed (root or CAP_SYSLOG reads it)")
    except OSError as error:
        return Gap(GapKind.FAILED, f"{log}: {error.strerror}")
    return [(address.decode(), int(code)) for address, code in found]


def _content(log: Path) -> bytes:
    """Read what is there now: /dev/kmsg gives one record a read, and blocks at its end."""
    parts: list[bytes] = []
    size = 0
    fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while size < _MOST_BYTES:
            try:
                part = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten meanwhile; go on with the oldest
                continue
            if not part:
                break
            parts.append(part)
            size += len(part)
    finally:
        os.close(fd)
    return b"".join(parts)
