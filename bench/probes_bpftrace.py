"""bpftrace, counting the same calls beside the agent's own programs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.probes_target import SYMBOL


def available() -> bool:
    """Tell whether bpftrace is installed."""
    return shutil.which("bpftrace") is not None


class Bpftrace:
    """Counts calls of libraries by process; use it as a context manager.

    libraries   by a name of letters; each with whether returns are counted too
    """

    def __init__(self, libraries: Mapping[str, tuple[Path, bool]]) -> None:
        text = []
        for name, (path, returns) in libraries.items():
            text.append(f"uprobe:{path}:{SYMBOL} {{ @{name}[pid] = count(); }}")
            if returns:
                text.append(f"uretprobe:{path}:{SYMBOL} {{ @{name}_returned[pid] = count(); }}")
        self._child = subprocess.Popen(
            ["bpftrace", "-f", "json", "-e", "\n".join(text)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it complains of a limit that it does not need
            text=True,
        )

    def __enter__(self) -> Bpftrace:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def end(self) -> dict[str, int]:
        """Stop it; give the calls by name of the library, and returns as NAME_returned."""
        self._child.send_signal(signal.SIGINT)
        said, _ = self._child.communicate(timeout=60)
        counts: dict[str, int] = {}
        for line in said.splitlines():
            content = json.loads(line) if line.startswith("{") else {}
            if content.get("type") == "map":
                for name, by_process in content["data"].items():
                    counts[name.removeprefix("@")] = sum(by_process.values())
        return counts
