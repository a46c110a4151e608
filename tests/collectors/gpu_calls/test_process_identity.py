"""Containers, pods and jobs by the shapes of their cgroup paths."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu_calls.process_identity import identify, parse_identity
from collectors.records.gpu_calls import ProcessLabels

ID = "3f4a" * 16
UID = "8b0f1c2d-4e5f-6071-8293-a4b5c6d7e8f9"
FLAT = UID.replace("-", "_")
STATIC = "4c1e8d50a3b2f6971c0d2e3f4a5b6c7d"

SHAPES = {
    f"0::/system.slice/docker-{ID}.scope": (ID, "", ""),
    f"12:cpu,cpuacct:/docker/{ID}\n0::/": (ID, "", ""),
    f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope/init": (
        ID, "", ""),
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/"
    f"cri-containerd-{ID}.scope": (ID, UID, ""),
    f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{ID}.scope/container": (
        ID, UID, ""),
    f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-conmon-{ID}.scope": ("", UID, ""),
    f"4:memory:/kubepods/burstable/pod{UID}/{ID}": (ID, UID, ""),
    f"4:memory:/kubepods/besteffort/pod{UID}/crio-{ID}": (ID, UID, ""),
    f"11:pids:/system.slice/containerd.service/kubepods-besteffort-pod{FLAT}.slice"
    f":cri-containerd:{ID}": (ID, UID, ""),
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/"
    f"cri-containerd-{ID}.scope": (ID, STATIC, ""),
    f"0::/../../kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope": (ID, UID, ""),
    f"0::/machine.slice/libpod-{ID}.scope/container": (ID, "", ""),
    f"0::/machine.slice/libpod-conmon-{ID}.scope": ("", "", ""),
    f"1:cpu:/machine.slice/libpod-{ID}.scope": (ID, "", ""),
    f"0::/system.slice/nerdctl-{ID}.scope": (ID, "", ""),
    # kind: a node that is a container itself; the pod's container counts
    f"0::/docker/{'0' * 64}/kubelet.slice/kubelet-kubepods.slice/"
    f"kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope": (ID, UID, ""),
    "9:memory:/slurm/uid_1000/job_12345/step_0/task_3": ("", "", "12345"),
    "9:memory:/slurm_node7/uid_1000/job_12345/step_batch": ("", "", "12345"),
    "0::/system.slice/slurmstepd.scope/job_778/step_extern/user/task_special": (
        "", "", "778"),
    "0::/system.slice/node7_slurmstepd.scope/job_778/step_0/user/task_0": (
        "", "", "778"),
    "0::/user.slice/job_5/step_0": ("", "", ""),
    "0::/": ("", "", ""),
    "nonsense": ("", "", ""),
    "": ("", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("cgroups", SHAPES)
def test_identity_of_real_world_paths(cgroups: str) -> None:
    assert parse_identity(cgroups) == ("", *SHAPES[cgroups], "")


def test_identity_takes_slurm_from_the_environment_where_the_path_is_silent() -> None:
    environment = b"PATH=/bin\0SLURM_JOBID=41\0SLURM_JOB_ID=42\0SLURM_JOB_NAME=secret\0"
    assert parse_identity("0::/user.slice", environment) == ProcessLabels("", slurm_job="42")
    path = "0::/system.slice/slurmstepd.scope/job_9/step_2/user/task_5"
    assert parse_identity(path, environment).slurm_job == "9"


@pytest.mark.parametrize("value", [b"1;rm", b"1" * 99, b""])
def test_identity_refuses_values_that_are_no_numbers_of_a_job(value: bytes) -> None:
    assert parse_identity("", b"SLURM_JOB_ID=" + value) == ProcessLabels("")


@given(st.text(max_size=400), st.binary(max_size=400))
def test_identity_of_any_text_is_an_identity(cgroups: str, environment: bytes) -> None:
    assert isinstance(parse_identity(cgroups, environment), ProcessLabels)


def test_identify_reads_a_live_process_and_not_a_dead_one(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["/bin/sleep", "60"], env={"SLURM_JOB_ID": "31337", "HOME": "/"}
    ) as process:
        try:
            # The environment is the child's own once it has executed its program.
            while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                pass
            assert identify(process.pid).slurm_job == "31337"
        finally:
            process.kill()
    assert identify(process.pid, str(tmp_path)) == ProcessLabels("")
