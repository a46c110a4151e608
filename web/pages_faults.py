"""Faults and health: which hardware failed, what that cost, and how hot and how hard GPUs run."""

from __future__ import annotations

from typing import Final

from .histogram_views import HistogramView
from .mix_views import CauseViews
from .page_shape import Page, choices

_SAMPLES: Final = "of the samples of all GPUs"

PAGE: Final = Page(
    "faults",
    "Faults and health",
    "Which hardware fails, what does it cost, and how hot and how hard do the GPUs run?",
    (
        *CauseViews(
            "hardware_faults",
            "fault",
            "No window of faults was released yet: the shipped plan counts them by eight weeks.",
        ).views(),
        HistogramView(
            "temperature", "GPU temperature", "temperature", "temperature", _SAMPLES
        ).view(),
        HistogramView("power", "GPU power", "power", "power", _SAMPLES).view(),
        HistogramView("utilisation", "GPU busy", "utilisation", "utilisation", _SAMPLES).view(),
        HistogramView("memory", "GPU memory in use", "memory", "memory", _SAMPLES).view(),
    ),
    choices("span", "until", "series", "cohort"),
)  # fmt: skip
