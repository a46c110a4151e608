"""A job on a GPU that is not there: a little host work, then as long a wait as its GPU takes.

python -m bench.diagnosis.workloads.gpu_steps FOLDER LIBRARY SEED
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from bench.diagnosis.gpu_pace import Pace
from bench.diagnosis.shared import StepLog
from bench.diagnosis.workloads.marks import StepMarks


def main(folder: Path, library: Path, seed: int) -> None:
    """Step until ended."""
    pace, chance = Pace(folder), random.Random(seed)
    marks, stalls = StepMarks(library, StepLog(folder)), pace.stalls
    while True:
        sum(range(4_000))
        time.sleep(pace.work_ms / 1e3 * chance.lognormvariate(0.0, 0.03))
        if pace.stalls != stalls:
            stalls = pace.stalls
            time.sleep(pace.stall_ms / 1e3)
        marks.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
