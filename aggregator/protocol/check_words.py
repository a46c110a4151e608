"""The check words of a sum: two of its words count the hosts that are in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wire.rejection import Reason, ReportRejected
from wire.task import CHECK_WORDS


def check_sum(vector: NDArray[np.int64] | NDArray[np.uint32], n: int) -> None:
    """The check words of a sum count its hosts.

    Raises      ReportRejected: check_sum
    """
    if (vector[:CHECK_WORDS] != n).any():
        raise ReportRejected(Reason.CHECK_SUM, f"check words of {n}", "others")
