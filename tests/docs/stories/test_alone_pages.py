"""Commands that need no fleet, as pages have them: kernels, plans, sizes, simulations, samples."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from tests.closed_kit import REPOSITORY
from tests.diagnosis.stragglers.test_stragglers_command import write
from tests.diagnosis.stragglers.test_trace_file import kineto
from tests.docs.stories.conftest import HERE
from tests.page_machine import PageMachine

pytestmark = [pytest.mark.root, pytest.mark.release]

LAUNCHES = [
    {"cat": "kernel", "name": name, "ts": at, "dur": 5, "pid": 0}
    for at, name in enumerate(["volta_sgemm_128x32_nt", "rms_norm_kernel", "softmax_warp_forward"])
]


EXPERIMENT = """
format = 1
name = "mine"
title = "How many hosts do we need?"
[[part]]
name = "cohort"
scenario = "operator_500"
hours = 1
fidelity = "noise"
seeds = 1
[part.axes]
epsilon = [2]
"""


@pytest.fixture(autouse=True)
def here(machine: PageMachine) -> None:
    machine.path(HERE).mkdir(exist_ok=True)
    machine.folder = HERE


def test_kernels_are_named_and_applications_told(machine: PageMachine) -> None:
    trace = gzip.compress(json.dumps({"traceEvents": LAUNCHES}).encode())
    for name in ("trace", "chat"):
        machine.path(f"{HERE}/{name}.json.gz").write_bytes(trace)
    batch = REPOSITORY / "simulator/workloads/moe_fp4_b200.toml"
    shutil.copy(batch, machine.path(f"{HERE}/batch.toml"))
    machine.type("kernels classify trace.json.gz")
    machine.type("kernels explain void vllm::rms_norm_kernel<half>(half*)")
    machine.type("signatures explain trace.json.gz")
    machine.type("signatures evaluate [PROFILE...]", "signatures evaluate")
    machine.type("signatures train chat.json.gz=llm_inference batch.toml --out signatures.json")
    profiles = [
        str(path)
        for folder in ("simulator/workloads", "bench/profiles")
        for path in sorted((REPOSITORY / folder).glob("*.toml"))
    ]
    machine.type(
        "signatures train simulator/workloads/*.toml bench/profiles/*.toml --out "
        "kernels/signatures.json",
        f"signatures train {' '.join(profiles)} --out again.json",
    )
    committed = (REPOSITORY / "kernels/signatures.json").read_text()
    assert machine.path(f"{HERE}/again.json").read_text() == committed


def test_fleets_are_planned_sized_and_simulated(machine: PageMachine) -> None:
    machine.type("plan")
    machine.type("plan --scheme local")
    machine.type("size --gpus 100000")
    machine.type("size --gpus 1000000 --gpus-per-host 4 --json")
    machine.type("simulate")
    machine.type("simulate --json")
    few = "--hosts 60 --processes 1"
    machine.type("simulate operator_500", more=f"--hours 1 {few}")
    machine.type(
        "simulate steady --hours 0.2", more=f"--fidelity noise {few}", having={"0.2": "0.02"}
    )
    runs = sorted(folder.name for folder in machine.path(f"{HERE}/runs").iterdir())
    there = {"simulate-steady-20260212-101500": runs[0]}
    machine.type("simulate --resume runs/simulate-steady-20260212-101500", having=there)
    machine.type("simulate practice --store practice/", more=f"--weeks 0.01 {few}")
    machine.type("simulate --weeks 9 --store STORE", more=few, having={"9": "0.002"})
    machine.path(f"{HERE}/mine.toml").write_text(EXPERIMENT)
    machine.type("experiment FILE", having={"FILE": "mine.toml"})


def test_samples_are_printed(machine: PageMachine) -> None:
    machine.type("sample list")
    machine.type("sample show agent.toml")


def test_slow_ranks_and_steps_are_found_in_recordings(machine: PageMachine) -> None:
    write(machine.path(f"{HERE}/trace.parquet"), 6, {4: 1.7})
    machine.type("stragglers trace.parquet --plot job.png")
    recorded = REPOSITORY / "bench/recordings/gloo-stress_cpu-middle-1.parquet"
    for folder in ("recordings", "traces"):
        machine.path(f"{HERE}/{folder}").mkdir()
    for rank in range(4):
        told = json.dumps(kineto(rank, slow=2.0 if rank == 3 else 1.0))
        machine.path(f"{HERE}/traces/{rank}.json").write_text(told)
    assert "slow: rank 3" in machine.type("stragglers traces/").said
    for name in ("run", "recordings/one"):
        shutil.copy(recorded, machine.path(f"{HERE}/{name}.parquet"))
    said = machine.type("agent diagnose --replay run.parquet --plots pictures").said
    assert "cpu_contention" in said
    machine.type("agent diagnose --replay recordings --json")
