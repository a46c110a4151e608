"""The overhead governor's state as a local record."""

from __future__ import annotations

from collectors.records.gpu_calls import GovernorState

from .governor import Period
from .periods import PeriodEnd


def governor_state(
    end: PeriodEnd, following: Period, budget: float, files: int, loader: str = "libbpf"
) -> GovernorState:
    """Tell what the period that begins does, and what the one that ended cost."""
    worst, measured = end.worst if end.worst is not None else (None, None)
    return GovernorState(
        following.begin_ns,
        following.end_ns - following.begin_ns,
        loader,
        budget,
        following.duty,
        tuple(sorted(following.steady)),
        tuple(sorted(following.in_turns)),
        dict.fromkeys(following.dropped, "dearer than the budget"),
        following.predicted,
        measured,
        worst,
        files,
        end.lost,
    )
