"""What a simulated fleet released, held against what its hosts truly did.

Everything here looks at outcomes and never changes them. Terms: docs/concepts.md; results:
docs/simulator-outcomes.md.
"""

from .coverage import CoverageTally, SectionCoverage
from .tables import CauseRow, CauseTable, cause_table
from .truth import TruthCell, TruthWriter, read_truth, truth_cells

__all__ = [
    "CauseRow",
    "CauseTable",
    "CoverageTally",
    "SectionCoverage",
    "TruthCell",
    "TruthWriter",
    "cause_table",
    "read_truth",
    "truth_cells",
]
