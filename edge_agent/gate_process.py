"""The PLD check at acceptance, in a process of its own that ends when nobody asks any more.

dp-accounting and SciPy take 70 MB, and a host asks them once a task: they must not stay in an agent
that runs for months. The child gets numbers only, no key, and no capability.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Final

from privacy.accountant import SectionNoise, gate, load_accountant
from privacy.errors import ParameterError
from transport.preload import reachable

from .task_check import Gate

IDLE_S: Final = 20.0
"""The child waits this long for the next task: those of one plan come together."""
_ANSWER_S: Final = 45.0
"""Twice, it is less than the time after which systemd takes the agent for stuck."""
_ROOT: Final = Path(__file__).resolve().parent.parent
_CODE: Final = "from edge_agent.gate_process import serve; serve()"


def gate_for(user: str) -> Gate:
    """Choose, while this process may still be root: a child's check, or this process's own.

    user    whom the agent becomes; a child of theirs must be able to load Python anew
    """
    if os.geteuid() != 0 or _reads_python(user):
        return GateProcess()
    load_accountant()
    return gate


def _reads_python(user: str) -> bool:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return False  # who drops privileges says so
    found = importlib.util.find_spec("dp_accounting")
    origin = found.origin if found else None
    files = [Path(sys.executable).resolve(), Path(os.__file__).resolve(), Path(__file__).resolve()]
    files += [Path(sys.executable).absolute(), *([Path(origin)] if origin else [])]
    return all(reachable(file.parent, entry.pw_uid, entry.pw_gid) for file in files)


class GateProcess:
    """The gate, asked in a child that is begun when it is needed."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __call__(
        self, sections: Sequence[SectionNoise], epsilon_millionths: int, delta_1e12: int
    ) -> float:
        """See `privacy.accountant.gate`; a child that gives no answer is a refusal."""
        question = json.dumps([[asdict(s) for s in sections], epsilon_millionths, delta_1e12])
        # The first child may have ended for lack of questions.
        answer = self._ask(question) or self._ask(question)
        if answer is None:
            raise ParameterError("epsilon of a week", "an answer of the accountant", "none")
        kind, *values = json.loads(answer)
        if kind != "epsilon":
            raise ParameterError(*values)
        return float(values[0])

    def close(self) -> None:
        """End the child; the next question begins another."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _ask(self, question: str) -> str | None:
        child = self._child
        if child is None or child.poll() is not None:
            child = self._child = _begin()
        if child.stdin is None or child.stdout is None:
            return None
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
        except OSError:
            child.kill()
            return None
        if not select.select([child.stdout], [], [], _ANSWER_S)[0]:
            child.kill()
            return None
        line = child.stdout.readline()
        if not line:
            child.kill()
        return line or None


def _begin() -> subprocess.Popen[str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE], cwd="/", env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    # Collects the child when it ends by itself.
    Thread(target=child.wait, daemon=True).start()
    return child


def serve() -> None:
    """Answer questions, one a line, until there are none."""
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        sections, epsilon_millionths, delta_1e12 = json.loads(line)
        noises = [SectionNoise(**section) for section in sections]
        try:
            answer = ["epsilon", gate(noises, epsilon_millionths, delta_1e12)]
        except ParameterError as error:
            answer = ["refused", error.bound, error.expected, str(error.got)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
