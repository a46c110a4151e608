"""Three fidelities, one distribution; with one seed the very same values where they must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edge_agent.ledger.ledger import Ledger
from pointillist.broker.local import RunningBroker
from simulator.engine.exact import Tampering
from simulator.engine.interface import EngineSettings, Noise, WindowOutcome
from simulator.scenario import Dropout
from tests.engine_kit import SEEDED, SILENT, SmallFleet, errors, plan, scenario, small_fleet
from transport.interface import ForwardingTransport, Producer, Transport
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import REPORTS

pytestmark = pytest.mark.release

FIDELITIES = ("exact", "masked", "noise")


@pytest.fixture(scope="module")
def fleet() -> SmallFleet:
    return small_fleet()


@pytest.fixture(scope="module")
def silent(fleet: SmallFleet) -> dict[str, list[WindowOutcome]]:
    """Every fidelity without noise."""
    return {name: fleet.play(name, SILENT) for name in FIDELITIES}


@pytest.fixture(scope="module")
def seeded(fleet: SmallFleet) -> dict[str, list[WindowOutcome]]:
    """Every fidelity with the noise of one seed."""
    return {name: fleet.play(name, SEEDED) for name in FIDELITIES}


def assert_same(one: WindowOutcome, other: WindowOutcome) -> None:
    """Every value but the time it took."""
    assert one.released is not None
    assert other.released is not None
    assert np.array_equal(one.released, other.released)
    assert_same_counts(one, other)


def assert_same_counts(one: WindowOutcome, other: WindowOutcome) -> None:
    """What is known without noise."""
    assert np.array_equal(one.truth, other.truth)
    for name in ("start", "n", "reporting", "refused", "reason", "windows", "capacity"):
        assert getattr(one, name) == getattr(other, name), name


def test_fidelities_release_the_same_words_without_noise(
    silent: dict[str, list[WindowOutcome]],
) -> None:
    for one, other, third in zip(*silent.values(), strict=True):
        assert_same(one, other)
        assert_same(one, third)
    assert {reason for one in silent["exact"] for reason in one.refused} == {"window_late"}
    assert all(one.reporting < 60 for one in silent["exact"])


def test_exact_and_masked_release_the_same_words_with_one_seed(
    seeded: dict[str, list[WindowOutcome]],
) -> None:
    for one, other, third in zip(*seeded.values(), strict=True):
        assert_same(one, other)
        assert_same_counts(one, third)


def test_seed_repeats_truth_and_release_and_another_changes_the_release(
    fleet: SmallFleet, seeded: dict[str, list[WindowOutcome]]
) -> None:
    again = SmallFleet(scenario(), plan()).play("masked", SEEDED)
    for one, other in zip(seeded["masked"], again, strict=True):
        assert_same(one, other)
    for name in ("masked", "noise"):
        other_seed = fleet.play(name, replace(SEEDED, seed=8))[0].released
        assert other_seed is not None
        assert not np.array_equal(other_seed[2:], seeded[name][0].released[2:])  # type: ignore[index]


@pytest.mark.parametrize("noise", [Noise.TABLE, Noise.SEEDED])
def test_fidelities_release_the_same_distribution(noise: Noise) -> None:
    settings = EngineSettings(noise=noise, seed=3, block_hosts=40)
    found = {name: errors(small_fleet(40, 4).play(name, settings)) for name in FIDELITIES}
    # 800 cells, of which the table draws anew in each run: once in ten million runs by chance.
    low, high = (float(stats.chi2.ppf(p, 796)) / 796 for p in (1e-8, 1 - 1e-8))
    for drawn in found.values():
        assert low < np.mean(drawn**2) < high
        assert stats.kstest(drawn, "norm").pvalue > 1e-8
    assert stats.ks_2samp(found["exact"], found["noise"]).pvalue > 1e-8


def test_noise_grows_with_the_hosts_that_report_not_with_those_rostered() -> None:
    """A fifth of the hosts away: the release carries the noise of the others alone."""
    fleet = SmallFleet(scenario(400, 4, dropout=Dropout(share=0.15, late_share=0.0)), plan())
    for name in ("masked", "noise"):
        assert 0.85 < np.mean(errors(fleet.play(name, replace(SEEDED, seed=8))) ** 2) < 1.16


def test_exact_draws_noise_as_live_agents_do() -> None:
    fleet = small_fleet(30, 1)
    drawn = errors(fleet.play("exact", EngineSettings(noise=Noise.OPENDP)))
    assert 0.6 < np.mean(drawn**2) < 1.5


@pytest.mark.parametrize("name", FIDELITIES)
def test_window_below_the_cohort_minimum_releases_nothing(name: str) -> None:
    fleet = SmallFleet(scenario(30, 2, dropout=Dropout(share=0.4, late_share=0.0)), plan())
    for one in fleet.play(name, SEEDED):
        assert (one.released, one.n, one.reason) == (None, 0, "n_min")
        assert one.truth.any()


def test_blocks_and_processes_do_not_change_a_word(
    fleet: SmallFleet, seeded: dict[str, list[WindowOutcome]]
) -> None:
    for name in ("masked", "exact"):
        for one, other in zip(
            fleet.play(name, replace(SEEDED, processes=2)), seeded["masked"], strict=True
        ):
            assert_same(one, other)


@pytest.mark.release
@pytest.mark.kafka
def test_exact_through_a_broker_releases_the_same_words(
    fleet: SmallFleet, seeded: dict[str, list[WindowOutcome]], broker: RunningBroker
) -> None:
    settings = replace(SEEDED, kafka=KafkaSettings((broker.bootstrap,), idle_read_s=0.1))
    for one, other in zip(fleet.play("exact", settings), seeded["masked"], strict=True):
        assert_same(one, other)


def test_exact_opens_epochs_anew_every_hour_and_releases_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[tuple[int, int]] = []
    real = Ledger.commit_epochs

    def noted(self: Ledger, openings: Any, records: Any, now_s: int) -> tuple[int, ...]:
        opened.append((now_s, len(openings)))
        return real(self, openings, records, now_s)

    monkeypatch.setattr(Ledger, "commit_epochs", noted)
    fleet = SmallFleet(scenario(40, 180), plan(window_s=1800))
    exact, masked = fleet.play("exact", SEEDED), fleet.play("masked", SEEDED)
    for one, other in zip(exact, masked, strict=True):
        assert_same(one, other)
    ends = [one.start + 1800 for one in exact]
    assert opened == [(end, 40) for end in ends[::2]]


class Twice:
    """A network that delivers every report again."""

    def __init__(self, inner: Producer) -> None:
        self._inner = inner

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._inner.send(topic, key, value)
        if topic == REPORTS:
            self._inner.send(topic, key, value)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class TwiceTransport(ForwardingTransport):
    def producer(self) -> Producer:
        return Twice(super().producer())


def twice(inner: Transport) -> Transport:
    return TwiceTransport(inner)


def test_exact_counts_what_a_network_does_and_releases_the_same(
    fleet: SmallFleet, seeded: dict[str, list[WindowOutcome]]
) -> None:
    played = fleet.play("exact", SEEDED, Tampering(transport=twice))
    for one, other in zip(played, seeded["exact"], strict=True):
        assert np.array_equal(one.released, other.released)  # type: ignore[arg-type]
        assert one.refused["duplicate"] == one.n
