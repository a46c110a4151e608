"""The PLD check at acceptance, in a process of its own that ends when nobody asks any more.

dp-accounting and SciPy take 70 MB, and a host asks them once a task: they must not stay in an agent
that runs for months. The child gets numbers only, no key, and no capability.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from threading import Thread, Timer
from typing import Final

from privacy.accountant import GATE_MARGIN, SectionNoise, gate
from privacy.errors import ParameterError
from transport.process.privileges import interpreter

from .task_check import Gate

IDLE_S: Final = 20.0
"""The child waits this long for the next task: those of one plan come together."""
_ANSWER_S: Final = 45.0
"""Twice, it is less than the time after which systemd takes the agent for stuck."""
_MOST_ANSWER: Final = 4096
_WHAT: Final = "epsilon of a week"
_CODE: Final = "from edge_agent.protocol.gate_process import serve; serve()"


def choose_gate() -> Gate:
    """Choose a child's check, or this process's own where a child could not load the code."""
    return GateProcess() if interpreter().whole else gate


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
            raise ParameterError(_WHAT, "an answer of the accountant", "none")
        return _epsilon(answer, epsilon_millionths / 1e6 + GATE_MARGIN)

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
        # Late at any point, in the middle of a line too, it is ended, and its pipes with it.
        late = Timer(_ANSWER_S, child.kill)
        late.start()
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
            line = child.stdout.readline(_MOST_ANSWER)
        except (OSError, ValueError):
            line = ""
        finally:
            late.cancel()
        if not line.endswith("\n"):
            child.kill()
            return None
        return line


def _epsilon(answer: str, most: float) -> float:
    """Read an answer: an epsilon within the bound, or the refusal it stands for."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        said = None
    match said:
        case ["epsilon", float(value)] if 0.0 <= value <= most:
            return value
        case ["refused", str(bound), str(expected), str(got)]:
            raise ParameterError(bound, expected, got)
        case _:
            raise ParameterError(_WHAT, f"an epsilon of at most {most:g}", "another answer")


def _begin() -> subprocess.Popen[str]:
    python = interpreter()
    child = subprocess.Popen(
        [python.program, "-P", "-S", "-c", _CODE], cwd="/", env=os.environ | python.environment,
        pass_fds=python.descriptors, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        process_group=0,  # a terminal's Ctrl-C is for the agent; this ends with its questions
    )  # fmt: skip
    # Collects the child when it ends by itself.
    Thread(target=child.wait, daemon=True).start()
    return child


def serve() -> None:
    """Answer questions, one a line, until there are none."""
    # What libraries print is no answer: it goes where their warnings go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
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
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
