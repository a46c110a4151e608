"""True steps, as they are before noise is added: what releases are held against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.encode import encode_rows


class EncodedSteps:
    """What hosts truly counted: the rows as they were rounded, before noise is added."""

    def __init__(self) -> None:
        self.last = np.zeros((0, 0), dtype=np.int64)

    def encode(self, *given: Any) -> NDArray[np.int64]:
        steps = encode_rows(*given)
        self.last = steps.copy()
        return steps
