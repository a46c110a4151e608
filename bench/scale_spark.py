"""What both roles carry where Spark reads the Leader's reports, on local[2].

Windows of a whole fleet lie on the log beforehand, and a batch takes as many reports as a window
has; the rate is that from the first release to the last, so that Spark's start, the epochs and the
first batch are told apart. Broker, Helper, Leader, driver and executors share the cores.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.leader.leader import Leader
from aggregator.leader.leader_runtime import LeaderShell
from aggregator.leader.report_reader import ReportReader
from aggregator.party.config import SparkSettings
from aggregator.spark.driver_process import DriverProcess, spark_job
from aggregator.spark.spark_reader import SparkReader
from bench.kafka import bare_rate
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, ROOT, Figure
from bench.round_fleet import T0, WINDOW_S, load_fleet, make_roster, make_task
from bench.scale_hour import HourLog, sealed
from bench.scale_rates import D
from bench.scale_roles import (
    SPAWN,
    NotingStore,
    Round,
    RunningClock,
    prepare,
    released,
    run_helper,
)
from pointillist.broker.local import BrokerOptions, LocalBroker
from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import Side, open_transport

HOSTS: Final = 4000
WINDOWS: Final = 6
PATIENCE_S: Final = 400.0
SETTINGS: Final = SparkSettings(
    master="local[2]", batch_records=HOSTS, options={"spark.driver.memory": "1g"}
)


def run_leader(asked: Round) -> None:
    """What the Leader's process does: the driver is its child, by the fleet's clock."""
    os.environ["PYTHONPATH"] = str(ROOT)
    ahead_s = asked.clock() - time.time()

    def by_spark(leader: Leader) -> ReportReader:
        job = spark_job(replace(asked.leader, spark=SETTINGS), leader.directory.parties)
        program = ("-m", "bench.spark_driver", str(ahead_s))
        return SparkReader(leader, DriverProcess(job, program=program))

    with open_transport(asked.log, Side.AGGREGATOR) as log:
        store = NotingStore(asked.folder / "released")
        shell = LeaderShell(asked.leader, log, store, reader=by_spark, clock=asked.clock)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


def run_roles(bootstrap: str, hosts: int, d: int, windows: int) -> Part:
    """Run Helper, Leader and Spark over one log."""
    fleet = load_fleet(hosts, CACHE / "scale-fleet", part=500)
    log = KafkaSettings((bootstrap,), prefix=f"scale-spark-{int(time.time())}.")
    with TemporaryDirectory(prefix="plst-") as name:
        folder, clock = Path(name), RunningClock(T0 + windows * WINDOW_S + 2)
        asked = Round(folder, log, clock)
        prepare(make_task(hosts, d)[2], make_roster(fleet, [d]), asked)
        HourLog(log).write(sealed(fleet, d, [T0 + at * WINDOW_S for at in range(windows)]))
        bare = bare_rate(log, hosts * windows)[0]
        parties = [SPAWN.Process(target=run, args=(asked,)) for run in (run_helper, run_leader)]
        begun_s = time.monotonic()
        for party in parties:
            party.start()
        try:
            while len(found := released(folder)) < windows:
                time.sleep(0.05)
                late = time.monotonic() - begun_s > PATIENCE_S
                if late or not all(party.is_alive() for party in parties):
                    raise RuntimeError(f"expected {windows} releases, got {len(found)}")
        finally:
            for party in parties:
                party.terminate()
                party.join(20)
    first_s, last_s = found[0].at_s, found[-1].at_s
    after_first = sum(release.at_s > first_s for release in found)
    rate = hosts * after_first / (last_s - first_s)
    return {"rate": rate, "bare": bare, "first_s": first_s - begun_s, "d": d}


def measure(kept: Parts) -> Measured:
    """Measure at d = 1,000."""
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        run = partial(run_roles, broker.start(print).bootstrap, HOSTS, D, WINDOWS)
        found = kept.get("spark_local2", run)
    unit = f"reports/s, both roles and the broker, batches of {HOSTS}"
    return Measured(
        [
            Figure("spark_reports_per_second_local2", found["rate"], unit),
            Figure("spark_first_release_s", found["first_s"], "s, Spark's start included"),
            Figure("spark_ratio_to_plain_reader", found["rate"] / found["bare"], "ratio"),
        ]
    )
