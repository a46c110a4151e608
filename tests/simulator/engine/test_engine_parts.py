"""Parts of the engine: tasks, rules of a batch, blocks, processes, randomness, the ledger."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggregator.helper.batch_rules import check_accepted, check_release
from aggregator.protocol.directory import KnownTask, VerifiedRoster
from edge_agent.ledger.ledger import Ledger
from privacy.errors import ParameterError
from simulator.engine import blocks as randomness
from simulator.engine.blocks import OsStream, spans, summed_noise
from simulator.engine.exact import make_roster
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.task_rules import by_operator
from simulator.engine.worker_pool import BlockHosts, WorkerFailed, WorkerPool
from simulator.fleet.hosts import HostInventory
from tests.engine_kit import SEEDED, SmallFleet, plan, scenario, small_fleet
from wire.fields import TaskId
from wire.rejection import Reason, ReportRejected
from wire.task import Task

pytestmark = pytest.mark.release


def inventory_of(operators: list[int]) -> HostInventory:
    """The small fleet's first hosts, in other hands."""
    whole = FLEET.model.inventory
    parts = {one.name: getattr(whole, one.name) for one in fields(whole)}
    cut = {name: part[: len(operators)] for name, part in parts.items() if np.ndim(part)}
    return replace(whole, **(cut | {"operator": np.array(operators, dtype=np.int16)}))


def test_tasks_count_the_largest_operator_as_corrupted() -> None:
    even = small_fleet(100).task
    uneven = SmallFleet(scenario(100, operators=(4.0, 3.0, 2.0, 1.0)), plan()).task
    assert (even.n_min, even.t, even.min_operators) == (80, 20, 3)
    assert (uneven.n_min, uneven.t) == (80, 40)
    assert uneven.sections[0].sigma_1024 > even.sections[0].sigma_1024
    with pytest.raises(ParameterError, match="honest hosts"):
        SmallFleet(scenario(100, operators=(5.0, 3.0, 2.0)), plan())


def test_tasks_of_one_operator_are_free_of_the_operator_rule() -> None:
    own = SmallFleet(scenario(100, operators=(1.0,)), plan()).task
    assert (own.t, own.min_operators) == (10, 0)


FLEET = small_fleet(60, 1)


def batch_fault(task: Task, operators: NDArray[np.int16]) -> Reason | None:
    """Why a batch of accepted hosts of these operators may not be released."""
    try:
        check_release(task, by_operator(operators))
    except ReportRejected as refusal:
        return refusal.reason
    return None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 3))
def test_batch_rules_are_those_of_the_helper(operators: list[int], spread: int) -> None:
    """The array form against the Helper's own check, host by host."""
    operators = [min(operator, spread) for operator in operators]
    keys = [bytes([number]) * 32 for number in range(len(operators))]
    roster = VerifiedRoster(make_roster(keys, inventory_of(operators), [FLEET.task]))
    known = KnownTask(TaskId(bytes(32)), FLEET.task, FLEET.task.d, b"", 0.0)
    try:
        check_accepted(known, roster, [entry.host_id for entry in roster.roster.entries])
        expected = None
    except ReportRejected as refusal:
        expected = refusal.reason
    assert batch_fault(FLEET.task, np.array(operators, dtype=np.int16)) is expected


def test_batch_rules_refuse_for_each_reason() -> None:
    task = FLEET.task
    assert batch_fault(task, np.zeros(47, dtype=np.int16)) is Reason.N_MIN
    assert batch_fault(task, np.arange(50, dtype=np.int16) % 2) is Reason.OPERATORS
    mostly = np.array([0] * 46 + [1, 2, 3, 4], dtype=np.int16)
    assert batch_fault(task, mostly) is Reason.OUTSIDE_LARGEST_OPERATOR
    assert batch_fault(task, np.arange(50, dtype=np.int16) % 5) is None


@pytest.mark.parametrize(("hosts", "processes"), [(1, 2), (100, 3), (512, 2), (1025, 2)])
def test_blocks_cover_every_host_once(hosts: int, processes: int) -> None:
    parts = spans(hosts, 64, processes)
    assert len(parts) <= processes
    assert all(parts)
    covered = [host for part in parts for one in part for host in range(one.lo, one.hi)]
    assert covered == list(range(hosts))
    numbers = [one.block for part in parts for one in part]
    assert numbers == list(range(len(numbers)))


class Failing(BlockHosts):
    """A part that does what it is told, and breaks."""

    def __init__(self) -> None:
        pass

    def add(self, a: int, b: int) -> int:
        return a + b

    def divide(self, a: int, b: int) -> float:
        return a / b

    def die(self) -> None:
        os._exit(3)


def test_worker_pool_says_which_process_failed_and_why() -> None:
    pool: WorkerPool[Failing] = WorkerPool([partial(Failing), partial(Failing)], 2)
    try:
        assert pool.call("add", 2, 3) == [5, 5]
        assert all(peak > 1 << 20 for peak in pool.peak_bytes())
        with pytest.raises(WorkerFailed, match=r"(?s)hosts-0.*ZeroDivisionError"):
            pool.call("divide", 1, 0)
        with pytest.raises(WorkerFailed, match="hosts-0"):
            pool.call("add", 1, 1)
    finally:
        pool.close()
        pool.close()


def test_os_stream_never_repeats_and_renews_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []
    real = os.urandom

    def urandom(count: int) -> bytes:
        keys.append(real(count))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(randomness, "_REKEY_BYTES", 3 << 20)
    stream = OsStream()
    drawn = bytes(stream((1 << 20) + 7) + stream(1 << 21) + stream(5) + stream(0))
    assert len(drawn) == (1 << 20) + 7 + (1 << 21) + 5
    assert len(keys) == len(set(keys)) == 2
    blocks = {drawn[at : at + 16] for at in range(0, len(drawn) - 16, 16)}
    assert len(blocks) == (len(drawn) - 1) // 16
    assert OsStream()(64) != OsStream()(64)


def test_os_stream_draws_another_key_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that went on with the parent's key stream would draw the parent's noise."""
    stream = OsStream()
    stream(16)
    before = stream._encryptor
    stream(16)
    assert stream._encryptor is before
    monkeypatch.setattr(os, "getpid", lambda: -2)
    stream(16)
    assert stream._encryptor is not before


def test_summed_noise_has_the_variance_of_its_shares() -> None:
    sigma = np.repeat(np.array([0, 2048, 4096], dtype=np.int64), [2, 20_000, 20_000])
    drawn = summed_noise(EngineSettings(noise=Noise.SEEDED, seed=1), "minute", 60, sigma, 3)
    assert not drawn[:2].any()
    for part, expected in ((drawn[2:20_002], 12), (drawn[20_002:], 48)):
        assert abs(part.var() / expected - 1) < 0.04
    again = summed_noise(EngineSettings(noise=Noise.SEEDED, seed=1), "minute", 120, sigma, 3)
    assert not np.array_equal(drawn, again)


def test_exact_spends_a_window_of_all_its_hosts_in_one_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent: Counter[int] = Counter()
    real = Ledger.commit_sealed

    def counted(self: Ledger, entries: Any, *rest: Any) -> tuple[int, ...]:
        spent[len(entries)] += 1
        return real(self, entries, *rest)

    monkeypatch.setattr(Ledger, "commit_sealed", counted)
    fleet = small_fleet()
    present = [int(state.present.sum()) for state in fleet.states]
    outcomes = fleet.play("exact", SEEDED)
    assert len(outcomes) == 3
    assert spent == Counter(present)
