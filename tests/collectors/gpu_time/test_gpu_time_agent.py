"""A real agent beside GPU programs without a GPU: what `top` and `history` show of them.

The driver's library and CUPTI are fakes with the true interface; everything between is real.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge_agent.local.live_socket import LiveClient
from tests.agent_live import Surroundings, surroundings
from tests.fake_nvml_kit import FakeDriver
from tests.gpu_time_kit import Program, program
from tests.integration.test_agent_cli import write_config
from tests.terminal_kit import Terminal
from tests.wait_kit import until

pytestmark = pytest.mark.release

PATIENCE_S = 60
_CODE = (
    "import pointillist.cli.agent_file as a; a.become_agent = lambda config: None;"
    "from pointillist.cli import main; main()"
)
_USES = "nvmlDeviceGetComputeRunningProcesses_v3"


def configured(made: Surroundings) -> Path:
    """A configuration with GPUs and GPU time, recorded all the time, and little else."""
    path = write_config(made)
    head = path.read_text().partition("[[sources.replay")[0]
    path.write_text(
        f"""{head}gpus = true
faults = false
[sources.probes]
enabled = false
[sources.gpu_time]
enabled = true
budget_percent = 50
socket = "{made.folder}/gpu-time.sock"
[diagnosis]
enabled = false
[metrics]
enabled = false
"""
    )
    return path


@contextmanager
def running(config: Path, environment: dict[str, str]) -> Iterator[None]:
    """An agent that is ready, and ends well."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(config.parent / "notify"))
    notify.settimeout(PATIENCE_S)
    told = {"NOTIFY_SOCKET": str(config.parent / "notify")}
    agent = subprocess.Popen(
        [sys.executable, "-c", _CODE, "agent", "run", "-c", str(config)],
        env=os.environ | environment | told,
        stderr=subprocess.DEVNULL,
    )
    try:
        while b"READY=1" not in notify.recv(4096):
            pass
        yield
        agent.terminate()
        assert agent.wait(PATIENCE_S) == 0
    finally:
        agent.kill()
        agent.wait()
        notify.close()


@contextmanager
def working(one: Program) -> Iterator[None]:
    """Kernels and copies on the second GPU, in a loop."""
    ending = threading.Event()

    def work() -> None:
        while not ending.wait(0.02):
            one.ask("kernels _Z11gemm_kernelPf 200 1 4000")
            one.ask("kernels flash_fwd_kernel 50 1 2000")
            one.ask("copies 1 20 1 1000")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def heard(made: Surroundings) -> Any:
    """What the agent tells `agent top`."""
    client, found = LiveClient(made.config.live_socket), dict[str, Any]()

    def answered() -> bool:
        found.update(client.poll() or {})
        return bool(found)

    until(answered)
    client.close()
    return found


def recorded(made: Surroundings, pid: int) -> Any:
    """What it tells of GPU time once all that a program did in the last seconds was recorded.

    Then no figure is a matter of which windows the machine left time for.
    """
    live: Any = None
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        live = heard(made)
        (process,) = (one for one in live["processes"] if one["pid"] == pid)
        known = process["gpu_ms"] is not None and process["gpu_ms"]["error"] is not None
        whole = known and process["timed"]["recorded_share"] > 0.99
        if whole and is_even(live):
            return live
        time.sleep(0.2)
    raise AssertionError(f"expected all to be recorded, and work to go on evenly, got {live}")


def is_even(live: Any) -> bool:
    """Whether whole rounds of work are told: 800, 100 and 20 us each, one thing after the other.

    A GPU's use is told a second or two behind its kernels, so a machine that has just stood still
    tells two that do not fit.
    """
    families = {one["family"]: one["share"] for one in live["families"]}
    busy, copy = (live["gpus"][1][name] for name in ("busy", "copy"))
    whole = sum(one["gpu_ms"]["value"] for one in live["kernels"] if one["gpu_ms"]) / 1000
    return bool(
        families.get("gemm") == pytest.approx(800 / 920, rel=0.1)
        and busy == pytest.approx(whole, rel=0.6)
        and copy == pytest.approx(busy * 20 / 920, rel=0.3)
    )


def command(*words: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *words, "--json"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_gpu_time_of_real_programs_is_shown_live_and_kept(
    tmp_path: Path,
) -> None:
    made, driver = surroundings(tmp_path), FakeDriver(tmp_path)
    config, path = configured(made), tmp_path / "gpu-time.sock"
    with ExitStack() as stack:
        trainer, bare = (stack.enter_context(program(path, *words)) for words in ((), ("bare",)))
        profiled = stack.enter_context(program(path))
        profiled.ask("occupy x 1")
        driver.play(
            "gpus 2", f"1 {_USES}.0 value {trainer.pid} 4096", f"0 {_USES}.0 value {bare.pid} 4096",
            f"0 {_USES}.1 value {profiled.pid} 4096",
        )  # fmt: skip
        parts = (
            "1 of 2 GPUs in use are measured whole", f"{trainer.pid} program", "13.0",
            f"GPU 0: program[{bare.pid}]: the library is not loaded", "gemm_kernel(float*)",
        )  # fmt: skip
        stack.enter_context(working(trainer))
        with running(config, driver.environment):
            top = [sys.executable, "-c", _CODE, "agent", "top", "-c", str(config)]
            with Terminal(80, 24, top) as terminal:
                terminal.until(lambda text: "this host" in text, lambda: None)
                terminal.press(b"t")
                # Processes, GPUs and kernels are told one after the other.
                terminal.until(lambda text: all(part in text for part in parts), lambda: None)
                terminal.press(b"q")
                assert terminal.ended() == (0, True)
            live = recorded(made, trainer.pid)
        kept = command("agent", "history", "-c", str(config), "--since", "5m", "--kind", "gpu_time")
    check_live(live, trainer.pid, bare.pid, profiled.pid)
    check_kept(kept, trainer.pid)


def check_live(live: Any, trainer: int, bare: int, profiled: int) -> None:
    processes = {one["pid"]: one for one in live["processes"]}
    states = {pid: one["timed"]["state"] for pid, one in processes.items()}
    assert states == {trainer: "measured", bare: "no_library", profiled: "occupied"}
    assert {one["family"] for one in live["families"]} == {"gemm", "attention", "memcpy"}
    idle, busy = live["gpus"]
    assert (idle["covered"], busy["covered"], len(idle["not_measured"])) == (False, True, 2)
    means = {kernel["family"]: kernel["mean_us"] for kernel in live["kernels"]}
    assert means == pytest.approx({"gemm": 4, "attention": 2, "memcpy": 1}, rel=0.02)
    for part in (*live["kernels"], *live["families"]):
        assert 0 <= part["gpu_ms"]["error"] <= 0.1 * part["gpu_ms"]["value"]


def check_kept(kept: Any, trainer: int) -> None:
    rows = kept["gpu_time"]
    assert {(row["pid"], row["state"], row["cupti_version"]) for row in rows} == {
        (trainer, "measured", 130_001)
    }
    # The last row, and the last step, may be a moment in which nothing ran yet.
    fullest = max(rows, key=lambda row: sum(one["gpu_time_ns"] for one in row["families"]))
    assert fullest["kernels"][0]["kernel"] == "gemm_kernel(float*)"
    assert {family["family"] for family in fullest["families"]} >= {"gemm", "attention"}
    step = max(kept["over_time"], key=lambda step: sum(step["family_shares"].values()))
    assert 0 < step["covered_share"] <= 0.5
    assert max(step["family_shares"], key=step["family_shares"].get) == "gemm"
