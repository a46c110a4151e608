"""Outcomes as the production store keeps releases, so that every reader of releases takes them."""

from __future__ import annotations

from hashlib import sha256

from aggregator.released import ReleasedWindow
from simulator.engine.engine_port import WindowOutcome


def release_of(outcome: WindowOutcome) -> ReleasedWindow:
    """Give what `aggregator.store.Store` takes. Raises ValueError where nothing was released."""
    if outcome.released is None:
        raise ValueError(f"expected a released window, got one kept back: {outcome.reason}")
    end_s = float(outcome.start + outcome.task.window_s + outcome.task.lateness_s)
    return ReleasedWindow(
        task_id=sha256(outcome.task.encode_body()).digest(),
        task=outcome.task,
        cohort=0,
        window_start_s=outcome.start,
        n=outcome.n,
        vector=outcome.released,
        rejections=outcome.refused,
        closed_s=end_s,
        released_s=end_s,
        capacity=outcome.capacity,
    )
