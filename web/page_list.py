"""The pages, in the order of the navigation; the first one that a role may open is its first."""

from __future__ import annotations

from typing import Final

from . import (
    pages_applications,
    pages_causes,
    pages_faults,
    pages_fleet,
    pages_kernels,
    pages_pipeline,
    pages_privacy,
)
from .page_shape import Page

PAGES: Final[tuple[Page, ...]] = (
    pages_fleet.PAGE,
    pages_applications.PAGE,
    pages_kernels.PAGE,
    pages_causes.PAGE,
    pages_faults.PAGE,
    pages_privacy.PAGE,
    pages_pipeline.PAGE,
)
