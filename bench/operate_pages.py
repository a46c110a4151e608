"""How many commands the documentation has, and how many of them tests run."""

from __future__ import annotations

from bench.parts import Measured, Parts
from bench.record import Figure
from tests.page_runs import counts


def measure(_kept: Parts) -> Measured:
    """Count commands: all, those that `make test` runs, those of other targets, and the others.

    A command counts as run where it is typed by a test, with other values where need be, or where
    it is a name in a sentence and commands of that name are.
    """
    found = counts()
    return Measured(
        [
            Figure("doc_commands", found.total(), "commands"),
            Figure("doc_commands_run", found["test"], "commands"),
            Figure("doc_commands_run_elsewhere", found["elsewhere"], "commands"),
            Figure("doc_commands_not_run", found["not_run"], "commands"),
        ]
    )
