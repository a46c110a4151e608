"""The driver's process of bench/scale_spark.py, in Spark's environment, which has not all of ours.

python -m bench.spark_driver JOB
"""

from __future__ import annotations

import pickle
import signal
import sys
import time
from pathlib import Path

from aggregator.spark.driver import run_driver
from aggregator.spark.spark_shell import SparkShell


def main() -> None:
    """Run the job of a file by the fleet's clock, which is so far ahead."""
    job, ahead_s = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 (our own)

    def begun(shell: SparkShell) -> None:
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())

    run_driver(job, begun=begun, clock=lambda: time.time() + ahead_s)


if __name__ == "__main__":
    main()
