"""What the Helper refuses: every rule that keeps one host from being singled out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.helper.batch_rules import check_accepted
from aggregator.protocol.interfaces import BatchKey, BatchReply
from privacy.masks import BoxError, derive_box_key, derive_helper_keys, mask_into, open_box
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Clock,
    Fleet,
    Host,
    World,
    build_world,
    honest_reports,
    make_epoch,
    open_epochs,
    seal_report,
    start_helper,
    true_sum,
    vector_of,
)
from wire.batch import ENTRY, AggregateShare, Batch, SignedBatch, SignedShare
from wire.fields import TaskId
from wire.rejection import ReportRejected


class Bench:
    """A Helper alone, and batches made by hand as a lying Leader would."""

    def __init__(self, world: World, folder: Path, **options: object) -> None:
        self.world, self.folder = world, folder
        self.clock = Clock(T0 + WINDOW_S + 5)
        self.helper, self.state, self.runner = start_helper(
            world,
            folder,
            self.clock,
            **options,  # type: ignore[arg-type]
        )

    def batch(
        self,
        hosts: list[Host],
        *,
        window: int = T0,
        cohort: int = 0,
        roster_ver: int = 1,
        spoil_check: int | None = None,
        spoil_tag: int | None = None,
        world: World | None = None,
    ) -> bytes:
        world = world or self.world
        rows = []
        for host in hosts:
            report = seal_report(
                world,
                host,
                vector_of(host, window, world.task.d),
                window=window,
                cohort=cohort,
                spoil_tag=host.number == spoil_tag,
            )
            k_box = derive_box_key(host.secrets[1], host.epoch.hash(), world.task_id)  # type: ignore[union-attr]
            plain = open_box(k_box, report.header.report_id, report.aad, report.box)
            check = bytes(8) if host.number == spoil_check else plain[:8]
            rows.append(
                (report.host_id, report.epoch_id, report.header.report_id, report.tag_h, check)
            )
        entries = np.frombuffer(b"".join(b"".join(row) for row in sorted(rows)), dtype=ENTRY)
        batch = Batch(TaskId(world.task_id), cohort, window, roster_ver, entries)
        return SignedBatch(batch, world.leader_key.sign(batch.unsigned())).encode()

    def ask(self, batch: bytes, *, complete: bool = True) -> BatchReply:
        return self.runner.submit_batch(batch, epochs_complete=complete)

    def share(self, batch: bytes, reply: BatchReply) -> AggregateShare:
        n = SignedBatch.decode(batch).batch.n
        return SignedShare.decode(reply.share, n, self.world.task.d).share


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    world = build_world(12)
    made = Bench(world, tmp_path)
    made.runner.submit_epochs(open_epochs(world))
    return made


def test_batch_of_colluders_alone_is_refused(tmp_path: Path) -> None:
    """All hosts of a batch belong to the operators that its h does not count on."""
    world = build_world(12, operators=lambda i: f"op-{i % 2}" if i < 8 else f"other-{i}", t=4)
    bench = Bench(world, tmp_path)
    bench.runner.submit_epochs(open_epochs(world))
    assert bench.ask(bench.batch(world.hosts[:8])).refusal == "operators"


def test_operator_above_the_cap_is_refused(tmp_path: Path) -> None:
    world = build_world(12, operators=lambda i: "big" if i < 8 else f"other-{i}")
    known = next(iter(world.directory().tasks.values()))
    roster = world.directory().rosters[1]
    with pytest.raises(ReportRejected, match="outside_largest_operator"):
        check_accepted(known, roster, [host.id for host in world.hosts])


@pytest.mark.parametrize(
    "grown",
    [
        {"n_max": 11},
        {"operators": lambda i: "big" if i < 3 else f"other-{i}"},
    ],
)
def test_roster_that_outgrew_its_task_gets_no_answer(grown: dict[str, Any], tmp_path: Path) -> None:
    """More hosts than n_max would wrap the sum; more of one operator than t break its h."""
    world = build_world(12, **grown)
    bench = Bench(world, tmp_path)
    bench.runner.submit_epochs(open_epochs(world))
    assert bench.ask(bench.batch(world.hosts[:9])).refusal == "roster_bound"
    assert bench.state.answer(BatchKey(world.task_id, 0, T0)) is None


def test_operator_task_has_no_operator_rule(tmp_path: Path) -> None:
    world = build_world(12, operators=lambda _i: "one", min_operators=0, domain="operator")
    bench = Bench(world, tmp_path)
    bench.runner.submit_epochs(open_epochs(world))
    assert bench.ask(bench.batch(world.hosts)).share


def test_second_batch_that_differs_in_one_host_is_refused_for_ever(bench: Bench) -> None:
    first = bench.ask(bench.batch(bench.world.hosts))
    assert first.share
    second = bench.ask(bench.batch(bench.world.hosts[:-1]))
    assert second.refusal == "answered_otherwise"
    assert not second.share
    assert bench.ask(bench.batch(bench.world.hosts)).share == first.share


def test_batch_below_n_min_is_refused_and_may_be_corrected(bench: Bench) -> None:
    assert bench.ask(bench.batch(bench.world.hosts[:7])).refusal == "n_min"
    assert bench.ask(bench.batch(bench.world.hosts[:9])).share


def test_same_batch_gets_the_same_bytes_also_after_a_restart(bench: Bench) -> None:
    batch = bench.batch(bench.world.hosts)
    first = bench.ask(batch)
    bench.state.close()
    again = Bench(bench.world, bench.folder)
    assert again.ask(batch, complete=False).share == first.share


def test_bad_tag_clears_one_host_and_the_batch_survives(bench: Bench) -> None:
    batch = bench.batch(bench.world.hosts, spoil_tag=3)
    reply = bench.ask(batch)
    share = bench.share(batch, reply)
    assert reply.cleared == {"tag": 1}
    assert share.n_accepted == 11


def test_bad_check_word_clears_one_host_and_the_batch_survives(bench: Bench) -> None:
    batch = bench.batch(bench.world.hosts, spoil_check=5)
    reply = bench.ask(batch)
    assert reply.cleared == {"check_words": 1}
    assert bench.share(batch, reply).n_accepted == 11


def test_host_in_a_second_cohort_or_task_version_is_not_counted_twice(tmp_path: Path) -> None:
    world = build_world(12)
    newer = world.resign(version=2)
    bench = Bench(world, tmp_path)
    bench.helper.directory.add_task(newer.task_bytes, T0)
    bench.runner.submit_epochs(open_epochs(world))
    assert bench.ask(bench.batch(world.hosts[:10])).share
    reply = bench.ask(bench.batch(world.hosts, world=newer))
    assert reply.refusal == "n_min"
    assert reply.cleared == {"host_used": 10}
    assert bench.ask(bench.batch(world.hosts, cohort=7)).cleared == {"cohort": 12}


def test_hosts_with_a_cleared_bit_are_not_used_up(tmp_path: Path) -> None:
    world = build_world(20)
    newer = world.resign(version=2)
    bench = Bench(world, tmp_path)
    bench.helper.directory.add_task(newer.task_bytes, T0)
    bench.runner.submit_epochs(open_epochs(world))
    assert bench.ask(bench.batch(world.hosts[:9], spoil_tag=2)).cleared == {"tag": 1}
    second = bench.ask(bench.batch([world.hosts[2], *world.hosts[9:]], world=newer))
    assert second.share
    assert second.cleared == {}


def test_batch_larger_than_the_roster_is_refused_before_any_host(bench: Bench) -> None:
    world = bench.world
    rows = b"".join(i.to_bytes(16, "big") + bytes(56) for i in range(5000))
    batch = Batch(TaskId(world.task_id), 0, T0, 1, np.frombuffer(rows, dtype=ENTRY))
    signed = SignedBatch(batch, world.leader_key.sign(batch.unsigned())).encode()
    assert bench.ask(signed).refusal == "batch_size"
    huge = signed[:68] + b"\xff\xff\xff\xff" + signed[72:]
    assert bench.ask(huge).refusal == "field"


def test_batch_of_another_signer_order_roster_or_time_is_refused(bench: Bench) -> None:
    world, batch = bench.world, bench.batch(bench.world.hosts)
    signature = world.helper_key.sign(batch[:-64])
    assert bench.ask(batch[:-64] + signature).refusal == "batch_signature"
    decoded = SignedBatch.decode(batch).batch
    swapped = Batch(decoded.task_id, 0, T0, 1, decoded.entries[::-1].copy())
    forged = SignedBatch(swapped, world.leader_key.sign(swapped.unsigned())).encode()
    assert bench.ask(forged).refusal == "order"
    assert bench.ask(bench.batch(world.hosts, roster_ver=2)).refusal == "roster_version"
    bench.clock.now_s = T0 + WINDOW_S - 1
    assert bench.ask(batch).refusal == "window_open"
    bench.clock.now_s = T0 + WINDOW_S + 6 * 3600 + 1
    assert bench.ask(batch).refusal == "retention"


def test_helper_asks_for_epochs_and_clears_what_never_comes(bench: Bench, tmp_path: Path) -> None:
    world = bench.world
    other = Bench(world, tmp_path / "other")
    batch = other.batch(world.hosts)
    asked = other.ask(batch, complete=False)
    assert len(asked.need_epochs) == 12
    assert other.state.answer(BatchKey(world.task_id, 0, T0)) is None
    given = [host.epoch.encode() for host in world.hosts[:-1] if host.epoch is not None]
    other.runner.submit_epochs(given)
    assert other.ask(batch).cleared == {"epoch_unknown": 1}


def test_stolen_seal_signed_by_another_host_does_not_open(tmp_path: Path) -> None:
    """The seal is bound to its host's header: a copy under another host's name is worthless."""
    world = build_world(12)
    epochs = open_epochs(world)
    thief, victim = world.hosts[0], world.hosts[1]
    assert victim.epoch is not None
    stolen, _ = make_epoch(world, thief, name="stolen")
    from dataclasses import replace

    forged = replace(stolen, seal_h=victim.epoch.seal_h, seal_l=victim.epoch.seal_l)
    forged = replace(forged, signature=thief.key.sign(forged.unsigned()))
    bench = Bench(world, tmp_path)
    bench.runner.submit_epochs([*epochs[1:], forged.encode()])
    assert bench.helper.refused == {"epoch_seal": 1}
    assert bench.helper.book.find(thief.id, forged.header.epoch_id) is None


def test_twin_epochs_die_and_a_forged_one_does_not_count(bench: Bench) -> None:
    world = bench.world
    forged, _ = make_epoch(world, world.hosts[0], salt="forged", signer=world.hosts[1].key)
    bench.runner.submit_epochs([forged.encode()])
    assert bench.helper.refused == {"epoch_signature": 1}
    twin, _ = make_epoch(world, world.hosts[2], salt="twin")
    bench.runner.submit_epochs([twin.encode()])
    reply = bench.ask(bench.batch(world.hosts))
    assert reply.cleared == {"epoch_twin": 1}
    # A restart remembers the dead.
    bench.state.close()
    again = Bench(world, bench.folder)
    again.clock.now_s = T0 + 2 * WINDOW_S + 5
    again.runner.submit_epochs([h.epoch.encode() for h in world.hosts if h.epoch is not None])
    reply = again.ask(again.batch(world.hosts, window=T0 + WINDOW_S))
    assert reply.cleared == {"epoch_twin": 1}


def test_epochs_that_contradict_their_counters_are_refused(bench: Bench) -> None:
    """A rolled-back ledger counts again what it counted before, at a later time."""
    world, host = bench.world, bench.world.hosts[0]

    def ask(name: int, counter: int, begun_s: int) -> None:
        epoch, _ = make_epoch(world, host, name=name, ledger_ctr=counter, not_before=begun_s)
        bench.runner.submit_epochs([epoch.encode()])

    ask(50, 5, T0 - 300)
    assert bench.helper.refused == {}
    ask(51, 5, T0 - 100)
    assert bench.helper.refused == {"epoch_counter": 1}
    ask(52, 4, T0 - 100)
    ask(53, 6, T0 - 400)
    assert bench.helper.refused == {"epoch_counter": 3}
    ask(54, 4, T0 - 400)
    ask(55, 6, T0 - 330)  # a clock set back by half a minute contradicts nothing
    assert bench.helper.refused == {"epoch_counter": 3}
    assert bench.state.counters()[host.id] == (6, T0 - 330)


def test_epochs_come_in_any_order_and_all_at_once(tmp_path: Path) -> None:
    """A day batch after midnight, then the minutes before it; a night's epochs in one call."""
    world = build_world(12)
    bench, host = Bench(world, tmp_path), world.hosts[0]
    made = [
        make_epoch(world, host, name=k, ledger_ctr=k, not_before=T0 - 26_000 + 1300 * k)[0].encode()
        for k in range(2, 21)
    ]
    bench.runner.submit_epochs([made[2], made[0], made[1]])
    bench.runner.submit_epochs(made)
    assert bench.helper.refused == {}
    bench.state.close()
    again = Bench(world, bench.folder)
    late = make_epoch(world, host, name="late", ledger_ctr=30, not_before=T0 - 3000)[0].encode()
    again.runner.submit_epochs([late])
    assert again.helper.refused == {"epoch_counter": 1}


def test_epochs_above_the_rate_are_refused_by_when_they_begin(bench: Bench) -> None:
    world, host = bench.world, bench.world.hosts[0]
    many = [
        make_epoch(world, host, name=i, ledger_ctr=i, not_before=T0 - 600 + i)[0].encode()
        for i in range(2, 13)
    ]
    bench.runner.submit_epochs(many)
    assert bench.helper.refused == {}
    ahead, _ = make_epoch(world, host, name=20, ledger_ctr=20, not_before=T0 + 3500)
    one_more, _ = make_epoch(world, host, name=13, ledger_ctr=13, not_before=T0 - 580)
    bench.runner.submit_epochs([one_more.encode()])
    assert bench.helper.refused == {"epoch_rate": 1}
    bench.runner.submit_epochs([ahead.encode()])
    far, _ = make_epoch(world, host, name=21, ledger_ctr=21, not_before=T0 + 90_000)
    past, _ = make_epoch(world, host, name=22, ledger_ctr=1, not_before=T0 - 90_000)
    bench.runner.submit_epochs([far.encode(), past.encode()])
    assert bench.helper.refused == {"epoch_rate": 1, "epoch_interval": 2}


def test_broker_that_leaks_the_box_to_the_helper_leaks_nothing(bench: Bench) -> None:
    """Everything that the Helper can derive does not open a box."""
    world, host = bench.world, bench.world.hosts[0]
    report = seal_report(world, host, vector_of(host, T0, world.task.d))
    assert host.epoch is not None
    context = (host.epoch.hash(), world.task_id)
    k_h = bench.helper.book.find(host.id, host.epoch.header.epoch_id)
    assert k_h is not None
    assert k_h.key is not None
    helper_keys = derive_helper_keys(k_h.key, *context)
    tried = [*helper_keys, derive_box_key(k_h.key, *context), k_h.key]
    for key in tried:
        with pytest.raises(BoxError):
            open_box(key, report.header.report_id, report.aad, report.box)
    right = derive_box_key(host.secrets[1], *context)
    assert open_box(right, report.header.report_id, report.aad, report.box)


def equal_sum_masks(shift: int) -> Callable[[bytes, bytes, NDArray[np.uint32]], None]:
    """Masks that differ host by host with `shift`, whose sum over two hosts stays the same."""
    sign: dict[bytes, int] = {}

    def fill(k_mask: bytes, nonce: bytes, out: NDArray[np.uint32]) -> None:
        mask_into(k_mask, nonce, out)
        if k_mask not in sign:
            sign[k_mask] = (1, -1)[len(sign) % 2]
        out[2:] += np.uint32(sign[k_mask] * shift % 2**32)

    return fill


def test_masks_with_equal_sums_give_byte_equal_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The Helper's output, logs, metrics and state depend on masks through their sum alone."""
    seen = []
    world = build_world(12)
    epochs = open_epochs(world)
    for shift in (0, 123_456_789):
        bench = Bench(world, tmp_path / str(shift), mask_source=equal_sum_masks(shift))
        bench.runner.submit_epochs(epochs)
        reply = bench.ask(bench.batch(world.hosts))
        answer = bench.state.answer(BatchKey(world.task_id, 0, T0))
        assert answer is not None
        status = bench.runner.status()
        seen.append((reply, answer.reply, answer.rejections, status, capfd.readouterr()))
    first, second = ((*one[:3], one[3].refused, one[4]) for one in seen)
    assert first == second


def test_one_mask_that_differs_changes_the_output(tmp_path: Path) -> None:
    """The test above would see a mask if there were one to see."""
    replies = []
    world = build_world(11)
    epochs = open_epochs(world)
    for shift in (0, 1):
        bench = Bench(world, tmp_path / str(shift), mask_source=equal_sum_masks(shift))
        bench.runner.submit_epochs(epochs)
        replies.append(bench.ask(bench.batch(world.hosts)).share)
    assert replies[0] != replies[1]


def test_release_is_countersigned_once_in_order_and_only_if_it_fits(tmp_path: Path) -> None:
    world = build_world(12)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    ((window, entry),) = fleet.helper_state.chain(world.task.series, 0)
    assert window == T0
    release = fleet.state.releases()[0]
    assert release.entry == entry
    assert release.vector == b""
    vector = true_sum(world, world.hosts).astype(np.uint32).astype("<u4").tobytes()
    assert fleet.port.submit_release(entry, vector).entry == entry
    assert fleet.port.submit_release(entry[:-200] + bytes(200), vector).refusal
