"""GPU probes need CAP_BPF and CAP_PERFMON, and nothing more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.closed_kit import closed, let_in
from tests.probes_kit import Stubs

pytestmark = [pytest.mark.root, pytest.mark.kernel]

SCRIPT = """
import subprocess, sys, time
from pathlib import Path
from collectors.interface import SourceUnavailable
from tests.probes_kit import probing, run
from transport.process.privileges import AGENT_USER, drop_to, ensure_users
library, caller, *capabilities = sys.argv[1:]
ensure_users()
drop_to(AGENT_USER, keep_caps=capabilities)
try:
    with probing() as probed:
        probed.attach(Path(library))
        run(Path(caller), "names")
        run(Path(caller), "threads", 2, 401)
        drain = probed.drain()
        print("counted", sum(probed.launches().values()), len(drain.names))
except SourceUnavailable as error:
    print("absent", error)
"""


def as_agent(stubs: Stubs, *capabilities: str) -> str:
    """Run the script as the agent's user with only these capabilities; give what it printed."""
    paths = [stubs.library("libcudart"), stubs.caller("libcudart")]
    done = subprocess.run(
        closed([sys.executable, "-c", SCRIPT, *paths, *capabilities]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_stubs(stubs: Stubs) -> Stubs:
    """The stubs, in folders that any user may enter."""
    let_in(stubs.folder)
    return stubs


def test_two_capabilities_suffice_to_probe_and_count(open_stubs: Stubs) -> None:
    assert as_agent(open_stubs, "CAP_BPF", "CAP_PERFMON") == "counted 802 1\n"


@pytest.mark.parametrize("capabilities", [("CAP_BPF",), ("CAP_PERFMON",)])
def test_without_them_one_line_says_what_is_missing(
    open_stubs: Stubs, capabilities: tuple[str, ...]
) -> None:
    said = as_agent(open_stubs, *capabilities)
    assert said.startswith("absent ")
    assert said.count("\n") == 1
    (missing,) = {"CAP_BPF", "CAP_PERFMON"} - {*capabilities}
    assert f"expected CAP_BPF and CAP_PERFMON; this process lacks {missing}\n" in said
