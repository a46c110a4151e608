"""A simulated fleet enrols and reports like any other: keys, tokens, roster, log, release."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.enrolment.enrolment import enrol_folder, load_enrolment
from aggregator.enrolment.roster_review import RosterEvidence
from aggregator.enrolment.tasks import TaskPlan, build_task, check_and_countersign
from aggregator.protocol.released import ReleasedWindow
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import Bounds, Pins
from pointillist.broker.local import RunningBroker
from pointillist.play.export import ExportConfigError, load_export_config
from privacy.signing import SigningKey
from simulator.engine.exact import ExactParties
from simulator.exported_fleet import (
    ExportedFleet,
    ExportSettings,
    IdentitiesError,
    load_identities,
    make_identities,
)
from simulator.fleet.hosts import make_inventory
from simulator.scenario import Dropout, Scenario, load
from simulator.slices import WindowTruth
from tests.agent_live import SteppedClock
from tests.kafka_kit import fresh_prefix, plain_settings
from transport.factory import EmbeddedSettings, Side, TransportSettings, open_transport
from transport.interface import Transport
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, wrap
from wire.roster import Roster
from wire.task import CHECK_WORDS, DEMO_DOMAIN, Task
from wire.topics import KEYS, ROSTERS, TASKS, announcement_key, roster_key, task_key

CATALOGUE = Catalogue.load()
HOSTS, WINDOW_S, START_S = 30, 60, 1_780_000_020
WEIGHTS = {"host_cpu": 500_000, "incidents": 100_000}


def small() -> Scenario:
    shape = load("steady").with_(operators=(1.0, 1.0, 1.0, 1.0, 1.0), dropout=Dropout(share=0.05))
    return shape.scaled(hosts=HOSTS)


def task_of(parties: ExactParties) -> Task:
    leader, helper = parties.public_keys
    plan = TaskPlan(
        series="minute", domain=DEMO_DOMAIN, window_s=WINDOW_S, first_window=START_S + WINDOW_S,
        last_window=START_S + 60 * WINDOW_S, lateness_s=30, retention_s=6 * 3600, weights=WEIGHTS,
        gpus_per_host=8, n_max=HOSTS, n_min=20, t=6, largest_operator=6, min_operators=3,
        leader_pk=leader, helper_pk=helper, expiry=START_S + 86_400,
    )  # fmt: skip
    return build_task(CATALOGUE, plan)


def enrolled(folder: Path, parties: ExactParties) -> tuple[list[Host], Roster]:
    """Enrol as the operators do: their keys into both files, requests into a roster, signed."""
    inventory = make_inventory(small(), CATALOGUE)
    leader, helper = parties.leader_key, parties.helper_key
    made = make_identities(folder / "fleet", inventory, "fleet", leader.public_bytes, START_S)
    plans = folder / "plans.toml"
    weight = sum(WEIGHTS.values())
    plans.write_text(
        f'[[plan]]\nname = "fleet"\nseries = {{ minute = {{ cohort = 0, '
        f"weight_millionths = {weight} }} }}\n" + made.operators_file.read_text()
    )
    built = enrol_folder(plans, made.joins, None, leader, at_once=True, now_s=START_S)
    pins = load_enrolment(plans).operators
    evidence = RosterEvidence(vouchers=built.vouchers, operators=pins, first=True)
    signed, said = check_and_countersign(
        built.roster, leader.public_bytes, helper, evidence=evidence, now_s=START_S
    )
    assert (said["hosts"], said["operators"]) == (HOSTS, made.operators)
    assert made.t_at_least == said["largest_operator"]
    roster = Roster.decode_body(Signed.decode(signed, labels.ROSTER).body)
    return load_identities(folder / "fleet"), roster


def announce(
    log: Transport, parties: ExactParties, task: Task, roster: Roster, folder: Path
) -> None:
    """Publish keys, roster and task, as a running Leader does."""
    span = (START_S, START_S + 3600)
    papers, _ = parties.start([task], roster, log, folder, span)
    producer = log.producer()
    for key in papers.announcements:
        name = announcement_key(key.party_pk, key.key_id)
        producer.send(KEYS, name, wrap(Kind.KEY_ANNOUNCEMENT, key.encode()))
    producer.send(ROSTERS, roster_key(), wrap(Kind.ROSTER, papers.roster))
    producer.send(TASKS, task_key(task.series), wrap(Kind.TASK, papers.tasks[0]))
    producer.close()


class Aggregators(SteppedClock):
    """The clock of all: while hosts sleep, the parties read and release."""

    def __init__(self, parties: ExactParties) -> None:
        super().__init__(START_S)
        self.parties, self.released = parties, list[ReleasedWindow]()

    def sleep_ms(self, span_ms: int) -> None:
        super().sleep_ms(span_ms)
        self.turn()

    def turn(self) -> None:
        now_s = self.unix_ms() / 1000
        self.parties.now_s = now_s
        while self.parties.read(0.0):
            pass
        self.released += self.parties.settle(now_s)[0]


def export(
    folder: Path, transport: TransportSettings
) -> tuple[Task, list[ReleasedWindow], list[WindowTruth]]:
    """Let the fleet report for three minutes, and the parties release what came."""
    parties, windows = ExactParties(), list[WindowTruth]()
    task = task_of(parties)
    hosts, roster = enrolled(folder, parties)
    leader, helper = parties.public_keys
    settings = ExportSettings(
        folder / "fleet",
        transport,
        Pins(frozenset({leader}), frozenset({helper})),
        Bounds(n_min_at_least=16),
        seconds=4 * WINDOW_S + 5,
        domain=DEMO_DOMAIN,
    )
    with ExitStack() as stack:
        log = stack.enter_context(open_transport(transport, Side.AGGREGATOR))
        (folder / "parties").mkdir()
        announce(log, parties, task, roster, folder / "parties")
        stack.callback(parties.close)
        clock = Aggregators(parties)
        fleet = ExportedFleet(small(), hosts, settings, windows.append, clock)
        sent = fleet.run()
        assert sent["windows"] == len(windows) == 3
        assert sent["sealed"] == sum(window.hosts for window in windows)
        assert sent["published"] == sent["sealed"] + sent["epochs"]
        while len(clock.released) < len(windows) and clock.unix_ms() < (START_S + 600) * 1000:
            clock.sleep_ms(1000)
    return task, clock.released, windows


def check(task: Task, released: list[ReleasedWindow], windows: list[WindowTruth]) -> None:
    sent = {window.start_s: window for window in windows}
    assert sorted(one.window_start_s for one in released) == sorted(sent)
    spec = task.sections[0]
    place = task.slices()[spec.name]
    for one in released:
        truth = sent[one.window_start_s]
        assert one.n == truth.hosts
        assert (one.vector[:CHECK_WORDS] == truth.hosts).all()
        steps = truth.sums[place.start - CHECK_WORDS : place.stop - CHECK_WORDS] / spec.q
        reach = 6 * np.sqrt(truth.hosts) * (spec.sigma_1024 / 1024 + 1)
        assert np.abs(one.vector[place] - steps).max() < reach


def test_export_enrols_and_its_reports_are_released(tmp_path: Path) -> None:
    check(*export(tmp_path, EmbeddedSettings(tmp_path / "log")))


@pytest.mark.kafka
def test_export_reports_through_a_broker(tmp_path: Path, broker: RunningBroker) -> None:
    check(*export(tmp_path, replace(plain_settings(broker), prefix=fresh_prefix())))


@pytest.fixture
def identities(tmp_path: Path) -> Path:
    inventory = make_inventory(small(), CATALOGUE)
    make_identities(tmp_path / "fleet", inventory, "fleet", bytes(32))
    return tmp_path / "fleet"


def test_export_never_overwrites_identities(identities: Path) -> None:
    before = (identities / "hosts.keys").read_bytes()
    with pytest.raises(IdentitiesError, match="name another folder"):
        make_identities(identities, make_inventory(small(), CATALOGUE), "fleet", bytes(32))
    assert (identities / "hosts.keys").read_bytes() == before
    assert len(load_identities(identities)) == HOSTS


def test_export_refuses_keys_that_others_may_read(identities: Path) -> None:
    assert (identities / "hosts.keys").stat().st_mode & 0o777 == 0o600
    (identities / "hosts.keys").chmod(0o644)
    with pytest.raises(IdentitiesError, match="nobody else may read"):
        load_identities(identities)


def test_export_config_must_name_the_transport_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "export.toml"
    keys = f'[trust]\nleaders = ["{"aa" * 32}"]\nhelpers = ["{"bb" * 32}"]\n'
    path.write_text(f'[fleet]\nidentities = "x"\n[transport]\nfolder = "log"\n{keys}')
    assert load_export_config(path, "log").fleet.plan == "fleet"
    with pytest.raises(ExportConfigError, match=r"expects \[transport.kafka\]"):
        load_export_config(path, "kafka")
    path.write_text(f'[fleet]\nidentities = "x"\nplane = "y"\n[transport]\nfolder = "log"\n{keys}')
    with pytest.raises(ExportConfigError, match="plane"):
        load_export_config(path, "log")


def test_page_names_the_t_and_n_min_that_the_enrolled_fleet_needs(tmp_path: Path) -> None:
    """With the plan file's own t and n_min no window of an exported fleet would be released."""
    page = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
    found = re.search(r"`hosts = (\d+)`, `t = (\d+)`, `n_min = (\d+)`", page)
    assert found is not None
    hosts, t, n_min = map(int, found.groups())
    inventory = make_inventory(load("steady").scaled(hosts=hosts), CATALOGUE)
    leader = SigningKey.generate().public_bytes
    made = make_identities(tmp_path / "fleet", inventory, "fleet", leader, START_S)
    assert (made.hosts, made.t_at_least, made.n_min_at_least) == (hosts, t, n_min)
