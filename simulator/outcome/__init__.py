"""What a simulated fleet released, held against what its hosts truly did.

Everything here looks at outcomes and never changes them. Terms: docs/concepts.md; results:
docs/simulator-outcomes.md.
"""

from .truth import (
    CoverageTally,
    SectionCoverage,
    TruthCell,
    TruthWriter,
    read_truth,
    truth_cells,
    with_release,
)
from .truth_tables import TrueCause, TrueTable, cause_table

__all__ = [
    "CoverageTally",
    "SectionCoverage",
    "TrueCause",
    "TrueTable",
    "TruthCell",
    "TruthWriter",
    "cause_table",
    "read_truth",
    "truth_cells",
    "with_release",
]
