"""What `leader` and `helper` have in common: their status file."""

from __future__ import annotations

from pathlib import Path

from .output import ExitCode, emit, reported, usage_error


def show_status(path: Path, party: str, json: bool) -> None:
    """Show what a party last said about itself.

    path        its status file
    party       `leader` or `helper`
    """
    from aggregator.helper_shell import read_status

    if not path.exists():
        raise usage_error(
            f"{path}: the {party.capitalize()} has not run here yet",
            f"start it: pointillist {party} run --config FILE",
        )
    with reported(ExitCode.FAILED, ValueError):
        emit(read_status(path), json)
