"""What an agent counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AgentTally:
    """Names and numbers, nothing measured."""

    published: int = 0
    sealed: int = 0
    epochs: int = 0
    expired: int = 0
    refused: Counter[str] = field(default_factory=Counter)
