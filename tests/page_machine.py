"""A machine of its own, on which the pages' commands are typed as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.closed_kit import REPOSITORY, mounted
from tests.golden_kit import noted
from tests.page_commands import Ended, words_of
from transport.process.privileges import ensure_users

NOTHING: Mapping[str, str] = {}
SERVES = "tests.forked_commands"
PATIENCE_S = 300
"""Ends a hang alone."""


class PageMachine:
    """A shell in namespaces: /etc, /run, /srv and /var/lib are its own, and so is the network."""

    def __init__(self, shell: subprocess.Popen[str], files: Path) -> None:
        self._shell, self._files, self._numbers = shell, files, count()
        self.typed: set[str] = set()
        self.running: list[Running] = []
        self.folder = "/srv/user"

    def path(self, inside: str) -> Path:
        return Path(f"/proc/{self._shell.pid}/root{inside}")

    def type(
        self,
        command: str,
        *forms: str,
        code: int = 0,
        more: str = "",
        having: Mapping[str, str] = NOTHING,
    ) -> Ended:
        """Run a command of a page, and expect an exit code; give how it ended.

        forms       what is typed where the page shows several at once: `agent top [--once|--json]`
        more        words behind it
        having      what stands on the page -> what is typed in its place
        """
        ended = Ended(code, "")
        for words in self._words(command, forms, more, having):
            ended = self.run(words, code)
        return ended

    def begin(
        self, command: str, *forms: str, more: str = "", having: Mapping[str, str] = NOTHING
    ) -> Running:
        (words,) = self._words(command, forms, more, having)
        return self.start(words)

    def _words(
        self, command: str, forms: Sequence[str], more: str, having: Mapping[str, str]
    ) -> list[list[str]]:
        told = words_of(command)
        self.typed.add(command)
        if forms:
            return [["pointillist", *shlex.split(form)] for form in forms]
        for name, instead in having.items():
            told = [re.sub(rf"\$?(?<!\w){re.escape(name)}(?!\w)", instead, word) for word in told]
        return [["pointillist", *told, *shlex.split(more)]]

    def run(self, words: Sequence[str], code: int = 0) -> Ended:
        running = self.start(words)
        self.running.remove(running)
        ended = running.wait()
        assert ended.code == code, f"{shlex.join(words)}\n{ended.code}: {ended.said}"
        document = running.out.read_text(encoding="utf-8")
        if words[0] == "pointillist" and "--json" in words and document.startswith(("{\n", "[\n")):
            noted(words[1:], document)
        return ended

    def answer(self, *words: str) -> Any:
        """Run a command with --json; give its answer, whatever its exit code."""
        running = self.start(["pointillist", *words, "--json"])
        self.running.remove(running)
        running.wait()
        return json.loads(noted(words, running.out.read_text(encoding="utf-8")))

    def start(self, words: Sequence[str]) -> Running:
        number = next(self._numbers)
        out, err = (self._files / f"{number}.{name}" for name in ("out", "err"))
        pid = self.ask(words=list(words), folder=self.folder, files=(str(out), str(err)))
        self.running.append(Running(self, pid, words, out, err))
        return self.running[-1]

    def ask(self, **what: object) -> int:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(json.dumps(what) + "\n")
        self._shell.stdin.flush()
        return int(json.loads(self._shell.stdout.readline()))

    def stop(self) -> None:
        while self.running:
            self.running[-1].end(signal.SIGKILL)
        assert self._shell.stdin is not None
        self._shell.stdin.close()


class Running:
    def __init__(
        self, machine: PageMachine, pid: int, words: Sequence[str], out: Path, err: Path
    ) -> None:
        self._machine, self.pid, self.words = machine, pid, words
        self.out, self.err = out, err

    @property
    def said(self) -> str:
        files = [file for file in (self.out, self.err) if file.exists()]  # it has just begun
        return "".join(file.read_text(encoding="utf-8") for file in files)

    def until(self, text: str) -> str:
        """Wait until it has said something, while it runs; give all that it said."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.said:
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            assert "Z" not in state.split()[0], self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)
        return self.said

    def wait(self) -> Ended:
        return Ended(self._machine.ask(wait=self.pid), self.said)

    def end(self, by: signal.Signals = signal.SIGTERM) -> Ended:
        """Stop it; give how it ended."""
        self._machine.running.remove(self)
        return Ended(self._machine.ask(end=(self.pid, int(by))), self.said)


@contextmanager
def page_machine(base: Path) -> Iterator[PageMachine]:
    """Give a machine for some tests.

    base        an empty folder, which everybody may enter
    """
    ensure_users()
    files = base / "said"
    own = base / "own"
    for folder in (files, own):
        folder.mkdir()
    mounts = [
        f"mount -t tmpfs -o mode=0755 tmpfs {own}",
        f"cp -a /etc {own}/etc; rm -rf {own}/etc/pointillist",
        f"mount --bind {own}/etc /etc",
        *(f"mount -t tmpfs -o mode=0755 tmpfs {each}" for each in ("/srv", "/run", "/var/lib")),
        "mkdir /srv/user; ip link set lo up",
        f"cd {REPOSITORY}",
    ]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "COLUMNS": "100",
        "HOME": "/srv/user",
    }
    shell = subprocess.Popen(
        ["unshare", "--net", *mounted(mounts, [sys.executable, "-m", SERVES])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    machine = PageMachine(shell, files)
    try:
        machine.run(["true"])  # once it answers its folders are its own
        yield machine
    finally:
        machine.stop()
        shell.wait()
