"""The library under the compiler's sanitizers, in processes that do to it what applications do."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.segment import RecordingState
from scripts.gpu_time.listening import OFF, ON, Listening, listening
from tests.gpu_time_kit import CUPTI, Program, program
from tests.wait_kit import until

pytestmark = pytest.mark.release

SANITIZERS = {
    "addresses": ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "threads": ("-g", "-fsanitize=thread"),
}


def sanitized(options: tuple[str, ...]) -> Path:
    """Give the library, built from its sources by gcc with these options."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, as make tools installs it")
    made = re.search(r"^SOURCES := (.*)$", (CUPTI / "Makefile").read_text(), re.MULTILINE)
    assert made
    sources = [CUPTI / name for name in made[1].split()]
    text = b"".join(path.read_bytes() for path in sorted(CUPTI.rglob("*.[ch]")))
    digest = hashlib.sha256(text + " ".join(options).encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"pointillist-sanitized-{os.getuid()}-{digest}.so"
    if not library.exists():
        draft = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-z,nodelete", *options,
             f"-I{CUPTI}", *sources, "-o", draft, "-pthread", "-ldl"],
            check=True,
        )  # fmt: skip
        draft.rename(library)
    return library


def live(one: Program, agent: Listening) -> None:
    """Have it record in windows, lose records, fork, lose its descriptors and meet a profiler."""
    agent.wait(one.pid, RecordingState.ON)
    one.ask("threaded varied 20000 4 500")
    one.ask("kernels node 50 3 10 7")
    one.ask("copies 1 40 0 100")
    one.ask("names x 9000")
    one.ask("long-names x 100")
    one.ask("unended gemm 100 0 5")  # ends the window
    for _ in range(2):
        agent.plan(OFF)
        one.ask("flat-out gemm 40000 0 10")
        agent.plan(WindowPlan(50, 100))
        one.ask("threaded gemm 20000 4 500")
    assert one.ask("fork").startswith("child 3 ")
    one.ask("inject")
    one.ask("close-all")
    agent.plan(OFF)
    until(lambda: "finalize behind a call" in one.calls[-1:])
    assert one.ask("occupy") == "subscribed 0"
    agent.plan(ON)
    agent.wait(one.pid, RecordingState.OCCUPIED)
    one.ask("kernels gemm 10 0 10")


@pytest.mark.parametrize("checked", SANITIZERS)
def test_nothing_is_out_of_bounds_undefined_or_raced_for(checked: str) -> None:
    options = SANITIZERS[checked]
    library = str(sanitized(options))
    with listening() as agent:
        agent.plan(ON)
        with program(
            agent.path,
            options=options,
            CUDA_INJECTION64_PATH=library,
            ASAN_OPTIONS="detect_leaks=0",
        ) as one:
            if one.said != "ready":
                one.end()
                assert "unexpected memory mapping" in one.errors
                pytest.skip("needs addresses that gcc's sanitizer of threads knows")
            live(one, agent)
            one.tell("exit 5")
            assert (one.end(), one.errors) == (5, "")
