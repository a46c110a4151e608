"""One alert: what Alertmanager tells alerts apart by, and what people read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True)
class Alert:
    """A fact and how long it stands.

    labels        say which fact it is; two alerts with the same are the same
    annotations   say it to people
    starts_s, ends_s   unix seconds; a fact that nobody renews is over at its end
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_s: float
    ends_s: float

    @property
    def fingerprint(self) -> str:
        """Name it by its labels and its beginning: a later fact of the same kind is another."""
        told = json.dumps([sorted(self.labels.items()), int(self.starts_s)])
        return sha256(told.encode()).hexdigest()[:32]

    def document(self) -> dict[str, Any]:
        """Give it as the state file has it."""
        return {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "starts_s": self.starts_s,
            "ends_s": self.ends_s,
        }
