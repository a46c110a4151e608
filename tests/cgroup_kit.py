"""The end of cgroups that tests made."""

from __future__ import annotations

import time
from pathlib import Path


def remove_cgroup(path: Path) -> None:
    """Remove an emptied cgroup; one that is still in use after two seconds stays."""
    for _ in range(100):
        try:
            path.rmdir()
        except OSError:
            time.sleep(0.02)  # its last task is still on its way out
        else:
            return
