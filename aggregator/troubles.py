"""What keeps an aggregator from its work now: told once when it begins, once when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from structlog.typing import FilteringBoundLogger


class Trouble(StrEnum):
    """A state that is waited out and left again; its name in logs, status and metrics."""

    LOG_AWAY = "log_away"
    HELPER_AWAY = "helper_away"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Standing:
    """A trouble that has not ended: since when, unix seconds, and what was said of it."""

    since_s: float
    detail: str


class Troubles:
    """The troubles of one party."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._standing: dict[Trouble, Standing] = {}

    @property
    def standing(self) -> Mapping[Trouble, Standing]:
        """What stands now."""
        return dict(self._standing)

    def begin(self, trouble: Trouble, now_s: float, detail: str) -> None:
        """Note a trouble; one that stands already is not told again."""
        if trouble not in self._standing:
            self._standing[trouble] = Standing(now_s, detail)
            self._log.warning("trouble", what=trouble.value, detail=detail)

    def end(self, trouble: Trouble, now_s: float) -> None:
        """Note that a trouble is over, if it stood."""
        standing = self._standing.pop(trouble, None)
        if standing is not None:
            lasted_s = round(now_s - standing.since_s, 1)
            self._log.warning("trouble over", what=trouble.value, lasted_s=lasted_s)
