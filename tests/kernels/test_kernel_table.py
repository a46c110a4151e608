"""The hand-checked table of kernel names: right where rules may look, honest where they may not."""

from pathlib import Path

import pytest

from bench.families import (
    accuracy_by_time,
    held_out,
    other_percent,
    read_labels,
    read_table,
    right,
    stem,
    unseen_rows,
)
from kernels.families import FamilyRules
from wire.catalogue import Catalogue

SEEN_AT_LEAST = 300
HELD_OUT_RIGHT, HELD_OUT_NAMES = 131, 152
"""As first measured. It may rise by rules written for other names, and may not fall."""


@pytest.fixture(scope="module")
def rules() -> FamilyRules:
    return FamilyRules.load()


def test_table_names_families_of_the_catalogue_once_each() -> None:
    rows = read_table()
    assert {row.family for row in rows} <= set(Catalogue.load().classes("family"))
    assert len({row.name for row in rows}) == len(rows)
    assert sum(row.source == "trace" for row in rows) >= 70
    assert len({row.source for row in rows}) >= 15


def test_table_rules_are_right_on_every_name_they_may_be_written_from(rules: FamilyRules) -> None:
    rows = read_table()
    unseen = unseen_rows(rows, rules)
    seen = [row for row in rows if row not in unseen]
    wrong = [
        (row.name, row.family, rules.explain(row.name))
        for row in seen
        if rules.classify(row.name)[0] != row.family
    ]
    assert len(seen) >= SEEN_AT_LEAST
    assert wrong == []


def test_table_held_out_names_are_no_worse_than_first_measured(rules: FamilyRules) -> None:
    unseen = unseen_rows(read_table(), rules)
    assert len(unseen) == HELD_OUT_NAMES
    assert right(unseen, rules) >= HELD_OUT_RIGHT


def test_table_no_rule_quotes_a_held_out_name(rules: FamilyRules) -> None:
    held = {row.name for row in unseen_rows(read_table(), rules)}
    assert [name for rule in rules.rules for name in rule.match if name in held] == []


def test_split_is_by_stem_and_takes_a_third() -> None:
    assert stem("void at::native::reduce_kernel<512, 1>(int)") == "reducekernel"
    assert held_out("volta_sgemm_128x32_nt") == held_out("volta_sgemm_32x128_nt")
    names = [f"{a}{b}_kernel" for a in "abcdefghij" for b in "klmnopqrst"]
    assert 20 <= sum(held_out(name) for name in names) <= 46
    # These never change: the split was fixed before the names were seen.
    assert held_out("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(int)")
    assert not held_out("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)")


def test_table_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    path.write_text("# remark\ncuBLAS\tgemm\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"names.tsv:2: expected 3 fields, got 2"):
        read_table(path)


def test_other_percent_weighs_by_gpu_time(tmp_path: Path, rules: FamilyRules) -> None:
    trace = tmp_path / "trace.json"
    event = '{"cat": "kernel", "name": "%s", "ts": 1, "dur": %d, "args": {"device": 0}}'
    events = ", ".join((event % ("my_private_kernel", 1), event % ("volta_sgemm_32x32_nt", 3)))
    trace.write_text(f'{{"traceEvents": [{events}]}}', encoding="utf-8")
    assert other_percent(trace, rules) == 25.0


def test_labels_accuracy_weighs_by_gpu_time_and_takes_alternatives(
    tmp_path: Path, rules: FamilyRules
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "trace,name,family,also,time_us,launches\n"
        "a,volta_sgemm_32x32_nt,gemm,,3,1\n"
        "a,my_private_kernel,softmax,reduce|norm,1,1\n"
        "b,void at::native::reduce_kernel<512>(int),sort_scan,norm|reduce,2.5,1\n"
        "c,volta_sgemm_32x32_nt,gemm,,0,0\n",
        encoding="utf-8",
    )
    assert accuracy_by_time(read_labels(labels), rules) == {"a": 75.0, "b": 100.0}
