"""What a simulated fleet released, held against what its hosts truly did.

Everything here looks at outcomes and never changes them. Terms: docs/concepts.md; results:
docs/simulator-model.md.
"""

from .coverage import TOTAL, CoverageTally, SectionCoverage, coverage_rows, percents
from .truth import (
    TrueCause,
    TrueTable,
    TruthCell,
    TruthWriter,
    cause_table,
    read_truth,
    truth_cells,
    with_release,
)

__all__ = [
    "TOTAL",
    "CoverageTally",
    "SectionCoverage",
    "TrueCause",
    "TrueTable",
    "TruthCell",
    "TruthWriter",
    "cause_table",
    "coverage_rows",
    "percents",
    "read_truth",
    "truth_cells",
    "with_release",
]
