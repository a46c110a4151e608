"""The driver's process of bench/scale_spark.py, in Spark's environment, which has not all of ours.

python -m bench.spark_driver AHEAD_S PIPE
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection

from aggregator.spark.driver import LeaderPipe, run_driver


def main() -> None:
    """Run what the Leader says by the fleet's clock, which is so far ahead."""
    ahead_s, leader = float(sys.argv[1]), LeaderPipe(Connection(int(sys.argv[2])))
    run_driver(leader.job(), leader, clock=lambda: time.time() + ahead_s)


if __name__ == "__main__":
    main()
