"""Processes of the bench: started inside a cgroup and a namespace, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.diagnosis.cgroups import Cgroup
from bench.record import ROOT

SYSTEM_PYTHON: Final = "/usr/bin/python3"
"""Workloads run under it: torch is the system's, never a dependency of the product."""
_ENTER: Final = 'for f in $FILES; do echo $$ > "$f" || exit 97; done; unset FILES; exec "$@"'


class Launched:
    """A process and its children, all in one process group."""

    def __init__(
        self,
        words: Sequence[str],
        cgroup: Cgroup,
        log: Path,
        namespace: str = "",
        cpus: Sequence[int] = (),
        memory_of: Cgroup | None = None,
    ) -> None:
        """Start a program.

        cgroup      it enters this one in every hierarchy, `memory_of` for its memory
        log         gets what it prints
        namespace   of the network; "" the machine's own
        cpus        it stays on these; () anywhere
        """
        around = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
        around += ["ip", "netns", "exec", namespace] if namespace else []
        self.words, self._log = tuple(words), log
        environment = {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "FILES": " ".join(map(str, cgroup.task_files(memory_of))),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _ENTER, "sh", *around, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id: sh, ip and taskset become the program itself."""
        return self._process.pid

    def check(self) -> None:
        """Raise RuntimeError with its last words where it has ended."""
        if (code := self._process.poll()) is not None:
            said = self._log.read_text(errors="replace")[-600:]
            raise RuntimeError(f"expected {' '.join(self.words)} to run, ended with {code}: {said}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def python(module: str, *arguments: object) -> list[str]:
    """Words that run a module of this bench under the system's Python."""
    return [SYSTEM_PYTHON, "-m", module, *(str(argument) for argument in arguments)]
