"""Both Debian packages in a root of their own: installed, run, upgraded, removed and purged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.packages.debian_kit import DebianRoot, built, copy_of_root, missing, repacked

pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(3_000),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

HERE = Path(__file__).resolve().parent
SET_UP = (HERE / "set_up.sh").read_text(encoding="utf-8")
RUN = (HERE / "run_roles.sh").read_text(encoding="utf-8")
# As a script upgrades, which has no terminal, on a machine whose services do not start.
UPGRADE = """
mkdir -p /run/systemd/system
apt-get install --yes -o Dpkg::Options::=--force-confold /packages/*.deb </dev/null
"""
VERIFY = "for unit in /usr/lib/systemd/system/pointillist-*; do systemd-analyze verify $unit; done"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return built(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[DebianRoot]:
    folder = tmp_path / "root"
    yield copy_of_root(folder)
    shutil.rmtree(folder)


def test_packages_are_installed_run_upgraded_removed_and_purged(
    debian: DebianRoot, packages: list[Path], tmp_path: Path
) -> None:
    debian.take(packages)
    debian.must("apt-get install --yes /packages/*.deb")
    users = debian.path("/etc/passwd").read_text(encoding="utf-8")
    roles = ("agent", "leader", "helper", "witness", "web")
    assert [role for role in roles if f"pointillist-{role}:" not in users] == []
    debian.must(VERIFY)

    debian.must(SET_UP)
    before = json.loads(debian.must(RUN))

    later = tmp_path / "later"
    later.mkdir()
    shutil.rmtree(debian.path("/packages"))
    debian.take([repacked(package, later, "0.1.0-2") for package in packages])
    told = debian.must(UPGRADE)
    assert "did not start again: systemctl status pointillist-agent" in told
    assert "did not start again: systemctl status pointillist-leader pointillist-helper" in told
    asked = "dpkg-query --show --showformat '${db:Status-Abbrev}' 'pointillist-*'"
    assert debian.must(asked).split() == ["ii", "ii"]
    web = debian.path("/etc/default/pointillist-web")
    shipped = [web, *debian.path("/etc/pointillist").glob("*.toml*")]
    anew = {path.name for path in shipped if "# of 0.1.0-2" in path.read_text(encoding="utf-8")}
    assert anew == {
        "witness.toml", "pointillist-web",
        *(f"{name}.toml.dpkg-dist" for name in ("agent", "leader", "helper")),
    }  # fmt: skip
    assert "0.1.0-2" in debian.must("dpkg-query --show pointillist-agent pointillist-aggregator")
    after = json.loads(debian.must(RUN))
    assert after["hosts"] == before["hosts"]

    command = debian.must("readlink -f /usr/bin/pointillist").strip()
    assert command == "/usr/lib/pointillist/aggregator/bin/pointillist"
    debian.must("apt-get remove --yes pointillist-aggregator")
    assert debian.must("pointillist --version").startswith("pointillist ")
    said = debian.run("pointillist leader run --config /etc/pointillist/leader.toml").stderr
    assert "pip install 'pointillist[aggregator]'" in said
    debian.must("apt-get remove --yes pointillist-agent")
    assert not debian.path("/usr/lib/pointillist").exists()
    assert not debian.path("/usr/bin/pointillist").is_symlink()
    assert debian.path("/etc/pointillist/agent.toml").exists()

    told = debian.must("apt-get purge --yes pointillist-agent pointillist-aggregator")
    assert not debian.path("/etc/pointillist/agent.toml").exists()
    assert "what was spent; remove it by hand" in told
    assert debian.path("/etc/pointillist/keys/host/identity.key").exists()
    assert list(debian.path("/var/lib/pointillist/agent/state").glob("*ledger*"))


def test_packages_are_the_same_bytes_in_a_second_build(
    packages: list[Path], tmp_path: Path
) -> None:
    for first, second in zip(packages, built(tmp_path), strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()
