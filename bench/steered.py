"""A process that is steered by lines on its standard input and answers by lines on its output."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class Steered:
    """Use it as a context manager: the process is killed at the end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        errors: int | None = None,
    ) -> None:
        """Start it; `errors` is where its standard error goes, as subprocess has it."""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=env, cwd=cwd
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Give its next line; empty where it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def waits(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def ask(self, line: str) -> str:
        """Have it do something; give its answer."""
        self.tell(line)
        return self.answer()
