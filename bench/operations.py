"""What operations do to a fleet: make bench-operations.

`field` runs scripts of what people reported elsewhere, each of which prints `N of M right`; they
lie in `shared/repro/field-b` beside the checkout. `own` runs tests of further cases, which
CASES names. `anew` counts the records that a deleted topic's readers lose of the one made in its
place. `versions` takes the newest run of the quick tests with the lowest versions that
pyproject.toml allows: `make test-all` makes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench.families import data_folder
from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure
from pointillist.broker.local import LocalBroker
from scripts.run_tests import summary_file
from tests.kafka_kit import fresh_prefix
from tests.transport.conformance import TOPIC, append, next_offsets, read_until
from tests.transport.kafka.test_kafka import KafkaFactory
from transport.factory import Side

CASES: Final[Mapping[str, str]] = {}
"""What happens to a fleet: the test that has it happen."""
MOVED: Final[Mapping[str, str]] = {
    r"transport\.kafka\.kafka_settings": "transport.kafka.kafka_frame",
    r"edge_agent\.sending\.control_feed": "edge_agent.sending.outbox",
    r"transport\.opening": "transport.factory",
    r"transport\.port\b": "transport.interface",
    "from tests.process_kit import wait_for": "",
}
SENT, BEFORE, LATER = 60, 10, 50
LONGEST_S: Final = 900
_RIGHT: Final = re.compile(r"^(\d+) of (\d+) right$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last)"


def field(kept: Parts) -> Measured:
    """Run every script there is: one that ends without its count is wrong as a whole."""
    found = data_folder().parent / "repro" / "field-b"
    if not found.is_dir():
        raise SystemExit(f"no scripts of the field in {found}")
    right = cases = tracebacks = 0
    wrong = []
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(shutil.copytree(found, Path(copy) / "scripts"))
        _as_now(folder)
        for script in sorted(folder.glob("*/try.*")):
            part = kept.get(script.parent.name, partial(_ran, script))
            counts = _RIGHT.findall(part["said"])
            good, of = map(int, counts[-1]) if counts else (0, 1)
            right, cases = right + good, cases + of
            tracebacks += part["said"].count(_TRACEBACK)
            wrong += [f"{script.parent.name}: {good} of {of} right"] if good < of else []
    return Measured(
        [
            Figure("field_cases", cases, "cases"),
            Figure("field_cases_right", right, "cases", cases),
            Figure("tracebacks_in_cases", tracebacks, "tracebacks", 0),
        ],
        wrong=wrong,
    )


def _ran(script: Path) -> Part:
    command = [sys.executable, "-W", "ignore"] if script.suffix == ".py" else ["bash"]
    uv = subprocess.check_output([ROOT / "scripts" / "uv.sh"], text=True).split()
    done = subprocess.run(
        [*command, str(script), str(ROOT), *(uv if script.suffix == ".sh" else ())],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    return {"said": done.stdout}


def _as_now(folder: Path) -> None:
    """Let copies of the scripts import by the names that modules have now."""
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.chmod(0o644)
        for before, now in MOVED.items():
            text = re.sub(before, now, text)
        path.write_text(text, encoding="utf-8")


def own(kept: Parts) -> Measured:
    ended = {
        name: kept.get(name.replace(" ", "_"), partial(_played, test))["code"]
        for name, test in CASES.items()
    }
    wrong = [f"{name}: {CASES[name]} ended with {code}" for name, code in ended.items() if code]
    return Measured(
        [
            Figure("own_cases", len(CASES), "cases", 20),
            Figure("own_cases_right", len(CASES) - len(wrong), "cases", len(CASES)),
        ],
        wrong=wrong,
    )


def _played(test: str) -> Part:
    command = [sys.executable, "-m", "pytest", "-qx", "-m", "release or not release"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", test],
        cwd=ROOT, env=os.environ | {"PYTHONUTF8": "1"}, capture_output=True, check=False,
        timeout=LONGEST_S,
    )  # fmt: skip
    return {"code": done.returncode}


def anew(_kept: Parts) -> Measured:
    """Read by the aggregators' client and by the agents', which runs on and which comes later."""
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder)) as broker:
        running = broker.start()
        lost = {
            side.name.lower(): _lost(KafkaFactory(running.bootstrap, fresh_prefix(), side))
            for side in Side
        }
    figure = Figure("records_lost_in_a_topic_made_anew", sum(lost.values()), "records", 0)
    return Measured([figure], {"records_lost": lost})


def _lost(factory: KafkaFactory) -> int:
    with factory.open() as log:
        log.create_topic(TOPIC, 4)
        append(log, SENT)
        member = log.consumer("g", [TOPIC])
        member.commit(next_offsets(read_until(member, SENT)))
        factory.make_anew()
        wanted = {f"value-{1000 + number}".encode() for number in range(BEFORE + LATER)}
        with factory.open() as other:
            append(other, BEFORE, first=1000)
            found = {record.value for record in read_until(member, BEFORE)}
            member.close()
            append(other, LATER, first=1000 + BEFORE)
            late = other.consumer("g", [TOPIC])
            found |= {record.value for record in read_until(late, LATER)}
            late.close()
    return len(wanted - found)


def versions(_kept: Parts) -> Measured:
    found = json.loads(summary_file("lowest").read_text())
    name = "quick_tests_failed_at_lowest_versions"
    return Measured([Figure(name, found["failed"], "tests", 0)])
