"""Root causes: what made hosts slow, by week, and what it cost."""

from __future__ import annotations

from typing import Final

from .mix_views import CauseViews
from .page_shape import Page, choices

PAGE: Final = Page(
    "causes",
    "Root causes",
    "What makes hosts slow, does it grow, and what does it cost?",
    CauseViews(
        "incidents",
        "cause",
        "No window of incidents was released yet: the shipped plan counts them by the week.",
    ).views(),
    choices("until", "series", "cohort"),
)
