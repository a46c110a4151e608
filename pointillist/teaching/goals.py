"""What the design asks of a diagnosis."""

from __future__ import annotations

from typing import Final

MACRO_F1_GOAL: Final = 0.92
AUROC_GOAL: Final = 0.95
DETECT_GOAL_S: Final = 3.0
CAUSE_GOAL_S: Final = 5.0
