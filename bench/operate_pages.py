"""How many commands the documentation has, and of how many pages a test runs them all."""

from __future__ import annotations

from bench.parts import Measured, Parts
from bench.record import Figure
from tests.page_commands import PAGES, RUN_BY, every_command_of


def measure(_kept: Parts) -> Measured:
    """Count commands: all, which a test holds to the product's, and those that a test runs."""
    every = sum(len(every_command_of(page)) for page in PAGES)
    run = sum(len(every_command_of(page, fenced_alone=True)) for page in RUN_BY)
    return Measured(
        [
            Figure("doc_commands", every, "commands"),
            Figure("doc_commands_run", run, "commands"),
        ]
    )
