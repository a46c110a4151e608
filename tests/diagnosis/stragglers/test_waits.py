"""Who waited for whom: the last to come, and to whom its lateness was due."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.families import LABELS, read_labels, read_table
from diagnosis.stragglers.calls import Calls, calls_of
from diagnosis.stragglers.judge import Slowness, job_of, judge
from diagnosis.stragglers.peers import PeerVerdict, find_waits
from diagnosis.stragglers.trace import (
    UNKNOWN,
    Meeting,
    OperationKind,
    RankTrace,
    communicates,
    operation,
)
from kernels.families import FamilyRules
from tests.shared_data import shared_data

Row = tuple[int, int, int, str, float, float]
"""rank, stage, step, name, start, end"""


def entries(*rows: tuple[int, int, int, float, float]) -> Calls:
    """call, rank, step, entered, left"""
    call, rank, step, entered, left = zip(*rows, strict=True)
    at, which, when = (np.array(column, dtype=np.int64) for column in (call, rank, step))
    return Calls.of(at, which, when, np.array(entered, dtype=float), np.array(left, dtype=float))


def trace(rows: list[Row], replica: dict[int, int] | None = None) -> RankTrace:
    names = sorted({row[3] for row in rows})
    rank = np.array([row[0] for row in rows], dtype=np.int32)
    places = replica or {}
    return RankTrace(
        rank,
        np.array([row[1] for row in rows], dtype=np.int32),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.array([names.index(row[3]) for row in rows], dtype=np.int32),
        tuple(names),
        np.array([row[4] for row in rows]),
        np.array([row[5] - row[4] for row in rows]),
        np.full(len(rows), UNKNOWN, dtype=np.int64),
        np.array([places.get(row[0], UNKNOWN) for row in rows], dtype=np.int32),
    )


def test_waits_are_for_the_last_to_enter() -> None:
    calls = entries((0, 0, 0, 1.0, 5.2), (0, 1, 0, 5.0, 5.2), (0, 2, 0, 4.0, 5.2))
    waits = find_waits(calls, 3, 1)
    assert waits.direct.tolist() == [[0, 4, 0], [0, 0, 0], [0, 1, 0]]
    assert waits.followed.tolist() == waits.direct.tolist()
    assert (waits.calls, waits.impossible) == (1, 0)


def test_waits_pass_lateness_on_to_whom_it_was_due() -> None:
    """Rank 1 waits four seconds for rank 0, then comes four seconds late to rank 2."""
    calls = entries(
        (0, 0, 0, 5.0, 5.0), (0, 1, 0, 1.0, 5.0), (1, 1, 0, 6.0, 6.0), (1, 2, 0, 2.0, 6.0)
    )
    waits = find_waits(calls, 3, 1)
    assert waits.direct[2].tolist() == [0, 4, 0]
    assert waits.followed[2].tolist() == [4, 0, 0]


def test_waits_keep_what_the_awaited_rank_worked_longer() -> None:
    """Of five seconds, two are due to rank 0: rank 1 itself worked three seconds longer."""
    calls = entries(
        (0, 0, 0, 3.0, 3.0), (0, 1, 0, 1.0, 3.0), (1, 1, 0, 7.0, 7.0), (1, 2, 0, 2.0, 7.0)
    )
    waits = find_waits(calls, 3, 1)
    assert waits.followed[2].tolist() == [2, 3, 0]


def test_waits_leave_out_calls_in_which_a_rank_left_too_early() -> None:
    calls = entries(
        (0, 0, 0, 1.0, 2.0), (0, 1, 0, 5.0, 6.0), (1, 0, 0, 7.0, 8.0), (1, 1, 0, 7.5, 8.0)
    )
    waits = find_waits(calls, 2, 1)
    assert waits.direct.tolist() == [[0, 0.5], [0, 0]]
    assert (waits.calls, waits.impossible) == (2, 1)


def test_waits_of_nothing_are_nothing() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    waits = find_waits(Calls.of(nothing, nothing, nothing, np.zeros(0), np.zeros(0)), 3, 2)
    assert not waits.direct.any()
    assert waits.transfers.time_s.shape == (0, 2)


@given(st.lists(st.lists(st.floats(0, 10), min_size=4, max_size=4), min_size=1, max_size=12))
def test_waits_followed_are_the_same_time_as_direct_ones(work: list[list[float]]) -> None:
    """Four ranks meet after each piece of work; each row's waiting is charged, none twice."""
    rows, now = [], 0.0
    for call, pieces in enumerate(work):
        end = now + max(pieces)
        rows += [(call, rank, 0, now + piece, end) for rank, piece in enumerate(pieces)]
        now = end
    waits = find_waits(entries(*rows), 4, 1)
    assert waits.followed.sum(axis=1) == pytest.approx(waits.direct.sum(axis=1))
    expected = [sum(max(p) - p[rank] for p in work) for rank in range(4)]
    assert waits.direct.sum(axis=1) == pytest.approx(expected)


def test_collectives_without_communicators_are_of_ranks_that_leave_together() -> None:
    rows: list[Row] = []
    for step in range(5):
        for rank in range(4):
            end = 10.0 if rank < 2 else 14.0
            rows.append((rank, 0, step, "grads-all-reduce", 8.0 + rank, end + 1e-4 * rank))
    waits = find_waits(calls_of(trace(rows)), 4, 5)
    assert waits.direct.tolist() == [[0, 5, 0, 0], [0] * 4, [0, 0, 0, 5], [0] * 4]


def pipeline(slow_link: float) -> list[Row]:
    """Two stages of four replicas; the link of replica 1 takes longer by `slow_link`."""
    rows: list[Row] = []
    for step in range(12):
        for replica in range(4):
            first, second = replica, 4 + replica
            took = 0.01 + (slow_link if replica == 1 else 0.0)
            rows += [
                (first, 0, step, "forward-compute", 0.0, 1.0),
                (first, 0, step, "forward-send", 1.0, 1.0 + took),
                (second, 1, step, "forward-recv", 0.0, 1.0 + took),
                (second, 1, step, "forward-compute", 1.0 + took, 2.0 + took),
            ]
    return rows


def test_links_that_carry_slower_than_their_like_are_named_with_both_ends() -> None:
    replicas = {rank: rank % 4 for rank in range(8)}
    judged = judge(job_of(trace(pipeline(0.5), replicas)))
    assert [one.ranks for one in judged.links] == [(1, 5)]
    assert judged.slow == (), "times do not tell which end of a link is slow"
    assert judge(job_of(trace(pipeline(0.05), replicas))).links == ()


def test_rank_all_of_whose_links_are_slow_is_slow_in_communication() -> None:
    rows: list[Row] = []
    for step in range(12):
        for replica in range(4):
            took = 0.6 if replica == 2 else 0.01
            for stage in range(3):
                rank = 4 * stage + replica
                rows.append((rank, stage, step, "forward-compute", 0.0, 1.0))
                if stage < 2:
                    begin = 1.0 + 2 * stage
                    rows.append((rank, stage, step, "forward-send", begin, begin + took))
                    rows.append((rank + 4, stage + 1, step, "forward-recv", begin, begin + took))
    judged = judge(job_of(trace(rows, {rank: rank % 4 for rank in range(12)})))
    (slow,) = judged.slow
    assert (slow.rank, slow.slowness) == (6, Slowness.COMMUNICATION)
    assert judged.ranks[2].verdict is PeerVerdict.NORMAL


@pytest.mark.parametrize(
    ("name", "kind", "meeting"),
    [
        ("forward-compute", OperationKind.COMPUTE, Meeting.NOBODY),
        ("backward-recv", OperationKind.COMMUNICATION, Meeting.NEXT),
        ("grads-reduce-scatter", OperationKind.COMMUNICATION, Meeting.GROUP),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", OperationKind.COMMUNICATION, Meeting.GROUP),
        ("optimizer-clip-main-grad", OperationKind.COMMUNICATION, Meeting.GROUP),
        ("collective_of_all", OperationKind.COMMUNICATION, Meeting.GROUP),
        ("CollectiveMma", OperationKind.OTHER, Meeting.NOBODY),
        ("optimizer", OperationKind.COMPUTE, Meeting.NOBODY),
        ("dataloader_next", OperationKind.DATA_LOADING, Meeting.NOBODY),
        ("gc", OperationKind.OTHER, Meeting.NOBODY),
    ],
)
def test_operation_is_read_from_its_name(name: str, kind: OperationKind, meeting: Meeting) -> None:
    assert operation(name)[:2] == (kind, meeting)


def test_operation_meets_where_the_family_of_a_kernel_communicates() -> None:
    """One list decides for both: no kernel meets in one command and works in another."""
    rules = FamilyRules.load()
    rows = read_table()
    apart = [
        row.name for row in rows
        if communicates(row.name) != (rules.classify(row.name)[0] == "communication")
        or (communicates(row.name) and operation(row.name).meeting is not Meeting.GROUP)
    ]  # fmt: skip
    assert not apart
    missed = [
        row.name for row in rows
        if communicates(row.name) != (row.family == "communication") and not row.held_out
    ]  # fmt: skip
    assert not missed


def test_operation_agrees_with_the_labels_of_traces() -> None:
    labelled = read_labels(shared_data(LABELS))
    apart = [
        one.name for one in labelled
        if ("communication" in one.families) is not communicates(one.name) and len(one.families) < 2
    ]  # fmt: skip
    assert not apart


TEMPLATE = "void cutlass::device_kernel<{}>()"


@pytest.mark.parametrize(
    ("name", "meets"),
    [
        ("void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*)", True),
        ("void sglang::cross_device_reduce_2stage<nv_bfloat16, 8>(RankData*)", True),
        ("void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16, 8>(Params)", True),
        ("void aiter::reduce_scatter_cross_device_store<opus::bf16_t, 8>(Params)", True),
        ("void quickreduce::allreduce_prototype_twoshot<CodecFP>(half*)", True),
        ("void trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()", True),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(AllReduceParams)", True),
        (TEMPLATE.format("cutlass::gemm::collective::CollectiveMma<MainloopSm90TmaGmma<4> >"), 0),
        (TEMPLATE.format("flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2> >"), False),
        ("void at::native::reduce_kernel<512, 1, at::native::NormTwoOps<float> >()", False),
    ],
)
def test_kernels_of_custom_collectives_meet_and_those_of_templates_do_not(
    name: str, meets: bool
) -> None:
    assert communicates(name) == meets
