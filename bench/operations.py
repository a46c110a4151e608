"""What operations do to a fleet: make bench-operations.

`field` runs scripts of what people reported elsewhere, each of which prints `N of M right`; they
lie in `shared/repro/field-b` beside the checkout. `own` runs tests of further cases, which
CASES names. `anew` counts the records that a deleted topic's readers lose of the one made in its
place. `versions` runs the quick tests with the lowest versions that pyproject.toml allows.
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

CASES: Final[Mapping[str, str]] = {
    "partitions are added to every topic of a running fleet":
        "tests/fault/test_log_made_anew.py::test_partitions_that_are_added_cost_no_report",
    "the embedded log is deleted under a fleet":
        "tests/fault/test_log_made_anew.py::test_embedded_log_made_anew_costs_no_report_that_is_sent_after",
    "a topic is deleted under a sender":
        "tests/transport/kafka/test_kafka_topics.py::test_topic_that_is_deleted_is_waited_for",
    "a codec of each kind":
        "tests/transport/kafka/test_kafka_unreadable.py::test_agent_reads_every_codec",
    "a spoilt batch in a partition":
        "tests/transport/kafka/test_kafka_unreadable.py::test_spoilt_batches_are_passed_over_and_noted_once",
    "a topic takes shorter batches than before":
        "tests/transport/kafka/test_kafka_long_batches.py::test_long_batch_goes_in_parts_and_a_longer_record_is_named",
    "one right of a role is forgotten":
        "tests/integration/test_kafka_rights.py::test_doctor_names_the_one_right_that_is_lacking",
    "root leaves files where the agent writes":
        "tests/edge_agent/local/test_local_parts.py::test_doctor_names_what_root_left_where_the_agent_writes",
    "a bug in a command that holds a key":
        "tests/pointillist/cli/test_cli.py::test_what_nobody_foresaw_is_one_line_and_a_file_without_secrets",
    "litter of tools and people in a store":
        "tests/aggregator/releases/test_stray_files.py::test_litter_at_each_level_changes_no_number_and_is_told_once",
    "a window is in a store twice":
        "tests/aggregator/releases/test_stray_files.py::test_two_files_of_one_window_are_refused_with_which_to_remove",
    "a path that is no store":
        "tests/aggregator/releases/test_stray_files.py::test_a_folder_that_is_no_store_is_an_error_and_a_new_store_is_none",
    "AppleDouble files beside tasks and journals":
        "tests/transport/files/test_own_names.py::test_what_a_foreign_disk_keeps_beside_files_is_read_by_none_and_told_once",
    "infinities in a query":
        "tests/aggregator/releases/test_query_releases.py::test_what_is_no_finite_number_is_missing_in_every_form",
    "a disk is copied to another machine":
        "tests/edge_agent/test_disown.py::test_copy_gets_a_key_of_its_own_and_keeps_nothing_that_the_other_measured",
    "a machine calls itself a copy":
        "tests/edge_agent/test_disown.py::test_machine_that_calls_itself_a_copy_has_no_budget_anew",
    "an image with one machine id":
        "tests/transport/files/test_keyfiles.py::test_text_that_tells_no_machine_from_another_is_no_machine_id",
    "times as people type them":
        "tests/aggregator/enrolment/test_times.py::test_build_refuses_what_people_type_for_a_time",
    "a Leader with a clock years ahead":
        "tests/aggregator/enrolment/test_times.py::test_leader_with_a_clock_years_ahead_makes_no_roster_that_locks_out_the_next",
    "a party's clock is stepped over a window's end":
        "tests/fault/test_clocks.py::test_party_whose_clock_is_stepped_over_a_windows_end_and_put_right_loses_no_report",
    "an agent starts before NTP":
        "tests/integration/test_agent_runtime.py::test_agent_that_starts_behind_what_an_aggregator_has_signed_waits_for_its_clock",
    "a machine wakes after its window's end":
        "tests/edge_agent/protocol/test_participant.py::test_participant_spends_nothing_for_a_window_that_it_woke_too_late_for",
    "three brokers are restarted in turn":
        "tests/fault/test_broker_faults.py::test_three_brokers_restarted_in_turn_under_a_fleet_cost_no_report",
    "noexec on the folder of temporary files":
        "tests/integration/test_noexec_tmp.py",
    "a sealing suite of tomorrow":
        "tests/upgrade/test_later_suites.py",
}  # fmt: skip
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


def versions(kept: Parts) -> Measured:
    """Run the quick tests in the environment that scripts/versions.sh makes."""
    found = kept.get("versions", _at_lowest)
    name = "quick_tests_failed_at_lowest_versions"
    return Measured(
        [Figure(name, found["failed"], "tests", 0)], {"lowest_versions_tests": found["tests"]}
    )


def _at_lowest() -> Part:
    subprocess.run([ROOT / "scripts" / "versions.sh"], check=True)
    lowest = ROOT / ".venv-lowest" / "bin" / "python"
    subprocess.run([lowest, "-m", "scripts.run_tests", "--quick"], cwd=ROOT, check=False)
    return dict(json.loads(summary_file("quick").read_text()))
