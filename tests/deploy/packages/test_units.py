"""The units of systemd: what each leaves open, and who their users are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench.operate import exposure, exposures
from transport.process.privileges import (
    AGENT_USER,
    HELPER_USER,
    LEADER_USER,
    LOG_GROUP,
    WITNESS_USER,
)

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "systemd"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of Debian's systemd"
)


@needs_systemd
def test_units_leave_little_open(tmp_path: Path) -> None:
    found = exposures()
    # An agent watches a whole host: it keeps capabilities that no party has, and on kernels of
    # before one of its children keeps CAP_SYS_ADMIN.
    assert found.pop("pointillist-agent") <= 4.0
    assert len(found) == 4
    assert max(found.values()) < 3.0, found
    wide = tmp_path / "wide.service"
    wide.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    assert exposure(wide) > 9.0


def test_users_of_the_units_are_those_that_the_command_makes() -> None:
    text = (DEPLOY / "pointillist.sysusers.conf").read_text(encoding="utf-8")
    users = set(re.findall(r"^u (\S+)", text, re.MULTILINE))
    assert users == {AGENT_USER, HELPER_USER, LEADER_USER, WITNESS_USER, "pointillist-web"}
    members = set(re.findall(rf"^m (\S+) {LOG_GROUP}$", text, re.MULTILINE))
    assert members == {AGENT_USER, LEADER_USER}
