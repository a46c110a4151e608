"""The driver's process, by a test's clock and killed where it says: in Spark's environment.

python -m tests.spark.driver_process FOLDER JOB
"""

from __future__ import annotations

import pickle
import signal
import sys
from pathlib import Path

from aggregator.spark.driver import run_driver
from aggregator.spark.spark_shell import SparkShell
from tests.process_kit import FileClock, KillHere


def main() -> None:
    folder, job = Path(sys.argv[1]), Path(sys.argv[2])
    kill = KillHere(folder, "spark")

    def checkpoint(step: str) -> None:
        with (folder / "steps").open("a") as file:
            file.write(f"{step}\n")
        kill(step)

    def begun(shell: SparkShell) -> None:
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())

    run_driver(
        pickle.loads(job.read_bytes()), begun=begun, clock=FileClock(folder), checkpoint=checkpoint
    )


if __name__ == "__main__":
    main()
