"""What keeps an aggregator from its work now: told once when it begins, once when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog


class Trouble(StrEnum):
    """A state that is waited out; the label of its gauge and its name in the status."""

    LOG_AWAY = "log_away"
    LOG_SILENT = "log_silent"
    HELPER_AWAY = "helper_away"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Standing:
    """A trouble that has not ended: since when, unix seconds, and what was said of it."""

    since_s: float
    detail: str


class Troubles:
    """The troubles of one party; `party` names its logger."""

    def __init__(self, party: str) -> None:
        self._log = structlog.get_logger(party)
        self._standing: dict[Trouble, Standing] = {}

    @property
    def standing(self) -> Mapping[Trouble, Standing]:
        """What stands now."""
        return self._standing

    def begin(self, trouble: Trouble, now_s: float, detail: str) -> None:
        """Note a trouble; one that stands already is not told again."""
        if trouble not in self._standing:
            self._standing[trouble] = Standing(now_s, detail)
            self._log.warning(trouble.value, detail=detail)

    def end(self, trouble: Trouble, now_s: float) -> None:
        """Note that a trouble is over, if it stood."""
        standing = self._standing.pop(trouble, None)
        if standing is not None:
            lasted_s = round(now_s - standing.since_s, 1)
            self._log.warning(f"{trouble.value} is over", lasted_s=lasted_s)
