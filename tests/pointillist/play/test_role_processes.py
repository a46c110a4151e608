"""Children of a demo or a trial end with it, however it ends."""

from __future__ import annotations

import _thread
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pointillist.play.processes import Family

LONGEST_S = 60
PARENT = """
import sys, time
from pathlib import Path
from pointillist.play.processes import Family

with Family(Path(sys.argv[1])) as family:
    child = family.start("child", "timeit", "import time; time.sleep(600)")
    print(child.process.pid, flush=True)
    time.sleep(600)
"""


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], LONGEST_S)[0], "the child lives on"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def test_second_ctrl_c_ends_a_child_that_does_not_stop(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True)"
    with Family(tmp_path) as family:
        words = ("-n1", "-r1", "-s", deaf, "import time; time.sleep(600)")
        child = family.start("child", "timeit", *words)
        child.message(LONGEST_S)
        threading.Timer(0.2, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            family.stop()
        assert not child.running
