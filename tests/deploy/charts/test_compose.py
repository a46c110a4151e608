"""The compose file, read by compose's own library."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / ".tools" / "charts" / "bin" / "compose"
FILE = ROOT / "deploy" / "compose" / "compose.yaml"

pytestmark = pytest.mark.release


def read(path: Path) -> subprocess.CompletedProcess[str]:
    if not COMPOSE.exists():
        pytest.skip(f"needs {COMPOSE}: make charts")
    return subprocess.run(
        [COMPOSE, "-format", "json", path],
        cwd=path.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_compose_reads_the_fleet_and_finds_what_it_mounts() -> None:
    done = read(FILE)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert set(services) == {
        "kafka", "leader", "helper", "agent", "web", "prometheus", "grafana",
    }  # fmt: skip
    mounted = [
        volume["source"]
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    fleet = str(FILE.parent / "fleet")  # made by whoever runs it
    ours = [path for path in mounted if "/deploy/" in path and not path.startswith(fleet)]
    assert len(ours) == 4
    assert [path for path in ours if not Path(path).exists()] == []


def test_nobody_can_log_in_where_passwords_are_known() -> None:
    services = json.loads(read(FILE).stdout)["services"]
    grafana = services["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert {service["network_mode"] for service in services.values()} == {"host"}
    addresses = [value for key, value in grafana.items() if key.endswith("_ADDR")]
    assert addresses == ["127.0.0.1"]


def test_compose_refuses_a_key_that_it_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("read_only:", "readonly:"))
    done = read(wrong)
    assert done.returncode != 0
    assert "readonly" in done.stdout + done.stderr
