"""A Debian of its own to install packages in: made once by debootstrap, copied for each test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
BASE = REPOSITORY / ".tools" / "debian-root"
WITH = "python3,libbpf1,systemd,procps"
NEEDED = ("debootstrap", "dpkg-deb", "unshare", "chroot", "ip")
# No process, address or mount of it is this machine's.
INSIDE = """
ip link set lo up
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/run"
for device in null zero urandom; do mount --bind "/dev/$device" "$1/dev/$device"; done
exec chroot "$1" /bin/bash -euo pipefail -c "$2"
"""


def missing() -> str:
    """Say why no root can be made here; "" where one can."""
    if os.geteuid() != 0:
        return "needs root, for a root folder of Debian's"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs Debian's {', '.join(absent)}" if absent else ""


def base_root() -> Path:
    """Give a bare Debian with what packages depend on; made on first use, in minutes."""
    if not (BASE / ".complete").exists():
        shutil.rmtree(BASE, ignore_errors=True)
        release = re.search(
            r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(encoding="utf-8")
        )
        assert release, "expected a VERSION_CODENAME in /etc/os-release"
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={WITH}", release[1], str(BASE)],
            check=True, stdout=subprocess.DEVNULL, timeout=1_200,
        )  # fmt: skip
        (BASE / "etc/machine-id").write_text("2f6b8c1de0a94753b1c2d3e4f5a69788\n")
        (BASE / ".complete").touch()
    return BASE


def copy_of_root(folder: Path) -> DebianRoot:
    """Copy the bare Debian; device nodes as nodes: read as files, some of them never end."""
    subprocess.run(["cp", "--archive", str(base_root()), str(folder)], check=True, timeout=600)
    return DebianRoot(folder)


def built(out: Path, *, revision: int = 1) -> list[Path]:
    """Build both packages; give their files."""
    done = subprocess.run(
        ["scripts/deb.sh", str(out)], cwd=REPOSITORY, check=True, text=True, timeout=1_200,
        env={**os.environ, "REVISION": str(revision)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    return [Path(line) for line in done.stdout.split()]


@dataclass(frozen=True, slots=True)
class DebianRoot:
    folder: Path

    def run(self, script: str, *, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        """Run a script of bash in it, with processes, mounts and a network of its own."""
        namespaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }  # fmt: skip
        return subprocess.run(
            [*namespaces, "sh", "-euc", INSIDE, "sh", str(self.folder), script],
            capture_output=True, text=True, timeout=timeout_s, check=False, env=environment,
        )  # fmt: skip

    def must(self, script: str) -> str:
        """Run a script that must succeed; give what it said on stdout."""
        done = self.run(script)
        assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
        return done.stdout

    def take(self, files: Sequence[Path]) -> None:
        folder = self.folder / "packages"
        folder.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, folder)

    def path(self, inside: str) -> Path:
        return self.folder / inside.lstrip("/")


def repacked(package: Path, out: Path, version: str) -> Path:
    """Give the package as a later version, with other configurations and uncompressed."""
    tree = out / "tree"
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(
        re.sub(r"^Version: .*$", f"Version: {version}", control.read_text(), flags=re.MULTILINE)
    )
    for file in (tree / "DEBIAN" / "conffiles").read_text().split():
        with (tree / file.lstrip("/")).open("a", encoding="utf-8") as shipped:
            shipped.write(f"# of {version}\n")
    name, _, architecture = package.stem.split("_")
    later = out / f"{name}_{version}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(later)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    shutil.rmtree(tree)
    return later
