"""Commands of pages that take minutes, a broker, or programs in the kernel."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pointillist.broker.local import jar_folder, jars
from tests.bpf_kit import cgroup
from tests.closed_kit import REPOSITORY
from tests.docs.stories.conftest import HERE
from tests.page_machine import PageMachine

pytestmark = [pytest.mark.root, pytest.mark.release, pytest.mark.timeout(900)]

STEPS, STEP_NS = 10_000, 10_000_000


@pytest.fixture(autouse=True)
def here(machine: PageMachine) -> None:
    machine.path(HERE).mkdir(exist_ok=True)
    machine.folder = HERE


def test_a_trial_is_brought_up_and_stopped(machine: PageMachine) -> None:
    least = "--hosts 20 --window-s 5 --windows 100"
    machine.type("fleet init /srv/trial", more=least, having={"/srv/trial": "/srv/up"})
    first = {"/srv/trial": "/srv/up"}
    machine.type("fleet up /srv/trial --until-release", having=first)
    running = machine.begin("fleet up /srv/trial", having=first)
    running.until("Released after")
    assert running.end().code in {0, 130, -15}


def test_a_host_is_enrolled_by_hand_beside_a_trial(machine: PageMachine) -> None:
    least, there = "--hosts 20 --window-s 5 --windows 100", {"/srv/trial": "/srv/hand"}
    machine.type("fleet init /srv/trial --host-by-hand --windows 240", more=least, having=there)
    up = machine.begin("fleet up /srv/trial", having=there)
    up.until("waits for the host")
    given = "/srv/hand/hosts/host-1"
    for mode, name in (("644", "agent.toml"), ("600", "token")):
        machine.run(["install", "-D", "-m", mode, f"{given}/{name}", f"/etc/pointillist/{name}"])
    machine.type("keys generate host")
    agent = machine.begin("agent run --config /etc/pointillist/agent.toml")
    agent.until('"no_roster"')
    machine.type("agent join --token-file /etc/pointillist/token")
    up.until("Released after")
    assert "Enrolled." in machine.type("agent join --token-file /etc/pointillist/token").said
    assert machine.answer("agent", "sent")["reports"]
    assert agent.end().code == 0
    assert up.end().code in {0, 130, -15}
    retired = machine.type("agent retire --config /etc/pointillist/agent.toml --yes")
    assert "identity.key.fence" in retired.said
    machine.run(["rm", "-r", "/srv/hand", "/etc/pointillist", "/var/lib/pointillist/agent"])


def test_hosts_live_through_journals(machine: PageMachine) -> None:
    journals = {"bench/journals": str(REPOSITORY / "bench/journals")}
    machine.type(
        "simulate faulty_month --hours 336 --journals bench/journals --out runs/lived",
        more="--hosts 1500 --processes 2", having=journals,
    )  # fmt: skip
    assert "Incidents of" in machine.type("causes --store runs/lived/releases").said


@pytest.mark.kafka
def test_a_broker_is_started_set_up_and_stopped(machine: PageMachine) -> None:
    jars(print)
    shutil.copytree(jar_folder(), machine.path(f"/srv/user/.cache/pointillist/{jar_folder().name}"))
    machine.run(["pointillist", "kafka", "start", "--secure"])
    bootstrap = machine.answer("kafka", "status")["bootstrap"]
    told = f'[transport.kafka]\nbootstrap = ["{bootstrap}"]\n'
    machine.path(f"{HERE}/admin.toml").write_text(told)
    machine.type("kafka status")
    machine.type(
        "kafka topics --config admin.toml --agent agent --leader leader --helper helper --reader "
        "reader"
    )
    machine.type("kafka topics --config admin.toml --check")
    assert "stopped" in machine.type("kafka stop").said


@pytest.mark.kernel
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, as make tools installs it")
def test_a_job_is_watched_and_recorded(machine: PageMachine, tmp_path: Path) -> None:
    library = machine.path(f"{HERE}/stepper")
    source = REPOSITORY / "tests/collectors/bpf/stepper.c"
    command = ["gcc", "-O1", "-pthread", "-o", str(tmp_path / "stepper"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    shutil.copy(tmp_path / "stepper", library)
    with steps_in_a_cgroup(machine) as group:
        there = {"/train/*": group, "./libtrain.so:step_done": "./stepper:pointillist_step"}
        said = machine.type(
            "agent diagnose --live --watch /train/* --step ./libtrain.so:step_done --plots "
            "pictures",
            more="--seconds 30", having=there,
        ).said  # fmt: skip
        assert "steps a second" in said
        there = {"/train/*": group, "./libtrain.so:train_step": "./stepper:pointillist_step"}
        machine.type(
            "agent diagnose --live --watch /train/* --step ./libtrain.so:train_step",
            more="--seconds 20", having=there,
        )  # fmt: skip
        machine.path(f"{HERE}/recordings").mkdir(exist_ok=True)
        there = {"./libtrain.so:train_step": "./stepper:pointillist_step"}
        there |= {"180": "26", "60 120": "21 25", "60": "21", "120": "25"}
        machine.type(
            "diagnosis record --out recordings/disk-1.parquet --step ./libtrain.so:train_step "
            "--seconds 180 --class disk_io --fault 60 120",
            having=there,
        )
    assert machine.path(f"{HERE}/recordings/disk-1.parquet").exists()


@contextmanager
def steps_in_a_cgroup(machine: PageMachine) -> Iterator[str]:
    with cgroup("cpu") as group:
        script = f"echo $$ > {group.path}/cgroup.procs; (echo; sleep 600) | exec ./stepper "
        running = machine.start(["sh", "-c", script + f"{STEPS} {STEP_NS} 1"])
        running.until("ready")
        yield group.name
        machine.run(["pkill", "--session", str(running.pid)], code=0)
        running.end()
