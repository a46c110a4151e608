"""The driver's process, by a test's clock and killed where it says: in Spark's environment.

python -m tests.aggregator.spark.driver_process FOLDER PIPE
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path

from aggregator.spark.driver import LeaderPipe, run_driver
from tests.process_kit import FileClock, KillHere


def main() -> None:
    folder, leader = Path(sys.argv[1]), LeaderPipe(Connection(int(sys.argv[2])))
    kill = KillHere(folder, "driver")

    def checkpoint(step: str) -> None:
        with (folder / "steps").open("a") as file:
            file.write(f"{step}\n")
        kill(step)

    run_driver(leader.job(), leader, clock=FileClock(folder), checkpoint=checkpoint)


if __name__ == "__main__":
    main()
