"""A command under a pseudo-terminal: what it shows, keys, and the terminal given back."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

PATIENCE_S: Final = 60
_HOME: Final = "\x1b[H"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """Runs a command in a terminal of a size, until the block ends; its Ctrl-C is a signal there.

    errors      whether what it says on stderr is on the terminal as well
    patience_s  how long a picture or the end is waited for
    """

    def __init__(
        self,
        columns: int,
        rows: int,
        command: Sequence[str],
        *,
        errors: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._leader, self._follower = pty.openpty()
        fcntl.ioctl(self._follower, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self._before = termios.tcgetattr(self._follower)
        self.shown = ""
        # A read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):  # a person looks on
            environment.pop(name, None)
        # Tests in the background ignore the signal of a Ctrl-C, and so would a child.
        self.child = subprocess.Popen(
            ["setsid", "--ctty", "env", "--default-signal=INT", *command], stdin=self._follower,
            stdout=self._follower, stderr=self._follower if errors else subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._leader)
        os.close(self._follower)

    def frame(self) -> list[str]:
        """Give the lines of the last whole picture, without colours."""
        pictures = self.shown.split(_HOME)
        whole = pictures[-2] if len(pictures) > 2 else pictures[-1]
        return [line.rstrip("\r") for line in _ESCAPES.sub("", whole).split("\n")]

    def until(self, right: Callable[[str], bool], meanwhile: Callable[[], object]) -> list[str]:
        """Wait for a picture; `meanwhile` is done again and again."""
        end = time.monotonic() + self._patience_s
        while time.monotonic() < end and self.child.poll() is None:
            meanwhile()
            self._read(0.05)
            if right("\n".join(self.frame())):
                return self.frame()
        raise AssertionError("never shown; last:\n" + "\n".join(self.frame()))

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.shown).replace("\r", "")

    def press(self, key: bytes) -> None:
        os.write(self._leader, key)

    def ended(self) -> tuple[int, bool]:
        """Wait for the end: (exit code, whether the terminal is as it was)."""
        end = time.monotonic() + self._patience_s
        while self.child.poll() is None and time.monotonic() < end:
            self._read(0.05)
        self._read(0)
        return self.child.wait(1), termios.tcgetattr(self._follower) == self._before

    def _read(self, seconds: float) -> None:
        while select.select([self._leader], [], [], seconds)[0]:
            self.shown += self._decoder.decode(os.read(self._leader, 65536))
            seconds = 0
