"""The agent's image for arm64, built on x86-64: its parts are of that machine, and it starts."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.images.podman import ENVIRONMENT, REPOSITORY

EMULATOR = "qemu-aarch64-static"

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(
        platform.machine() != "x86_64" or os.geteuid() != 0 or shutil.which(EMULATOR) is None,
        reason=f"needs root on x86-64, and {EMULATOR}",
    ),
]


def run(*command: str | Path, **environment: str) -> str:
    return subprocess.run(
        command,
        env={**ENVIRONMENT, **environment},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


def test_the_image_for_arm64_is_of_that_machine_and_starts() -> None:
    image = "localhost/pointillist-agent:arm64"
    run("scripts/images.sh", "agent", MACHINE="aarch64")
    what = "{{.OCIv1.Architecture}}"
    assert run("buildah", "inspect", "--type", "image", "--format", what, image) == "arm64"
    container = run("buildah", "from", "--arch", "arm64", image)
    try:
        root = Path(run("buildah", "mount", container))
        shutil.copy(str(shutil.which(EMULATOR)), root / "tmp")
        python = ("chroot", root, f"/tmp/{EMULATOR}", "/usr/bin/python3")
        assert run(*python, "/usr/local/bin/pointillist", "--version").startswith("pointillist ")
        # Each compiled package of the agent's loads, and TLS has roots to trust.
        loads = "import numpy, scipy.stats, cryptography, nacl, psutil, capstone, cramjam, ssl"
        trusted = "print(len(ssl.create_default_context().get_ca_certs()))"
        assert int(run(*python, "-c", f"{loads}; {trusted}")) > 100
    finally:
        run("buildah", "rm", container)
