"""What a role logs: words at a terminal, one JSON document a line elsewhere."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

_CODE = r"""
import structlog
from transport.process.supervision import log_to_stderr
log_to_stderr()
structlog.get_logger().info("worker joined", workers=3, said="a\x1b[2Jb\u202e")
"""
_RUN = [sys.executable, "-c", _CODE]


def test_log_of_no_terminal_is_a_json_document_a_line() -> None:
    said = subprocess.run(_RUN, stderr=subprocess.PIPE, check=True, text=True).stderr
    line = json.loads(said)
    assert (line["event"], line["workers"], line["level"]) == ("worker joined", 3, "info")


def test_log_at_a_terminal_is_words_and_no_stranger_moves_its_cursor() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run(_RUN, stderr=theirs, check=True, env={**os.environ, "NO_COLOR": "1"})
        os.close(theirs)
        said = screen.read(4096).decode().strip()
    assert "worker joined" in said
    assert "workers=3" in said
    assert r"said='a\x1b[2Jb\u202e'" in said
    assert said.isprintable()
