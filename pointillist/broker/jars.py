"""What a broker needs to run: Java, and Kafka's jars, which Maven fetches once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import platformdirs

VERSION: Final = "4.3.1"
LEAST_JAVA: Final = 17
PACKAGES: Final = ("default-jre-headless", "maven")
_FETCH_S: Final = 600
_HERE: Final = Path(__file__).resolve().parent


class BrokerError(Exception):
    """The broker cannot be had or does not run; says what to do."""


def missing_programs() -> list[str]:
    """Name what a broker needs and this machine lacks."""
    found, missing = java_version(), []
    if found < LEAST_JAVA:
        missing.append(f"Java {LEAST_JAVA} or later" + (f" (found {found})" if found else ""))
    if shutil.which("mvn") is None and not _fetched():
        missing.append("Maven")
    return missing


def java_version() -> int:
    """Give the major version of `java` on PATH, 0 where there is none."""
    java = shutil.which("java")
    if java is None:
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    # Up to Java 8 the major version came second: 1.8.0_402.
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


def installable() -> bool:
    """Whether `install_programs` can work here: root on Debian or Ubuntu."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_programs(say: Callable[[str], None]) -> None:
    """Install what is missing where root may, else say how.

    Raises      BrokerError
    """
    missing = missing_programs()
    if not missing:
        return
    command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if not installable():
        raise BrokerError(
            f"Kafka needs {' and '.join(missing)}; on Debian and Ubuntu, as root: {command}"
        )
    say(f"installing {' and '.join(missing)}: {command} ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *step],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and step[0] == "install":
            raise BrokerError(f"{command} failed: {done.stderr.strip()[-500:]}")
    if left := missing_programs():
        raise BrokerError(f"expected {' and '.join(left)} after {command}, found none")


def jars(say: Callable[[str], None]) -> Path:
    """Give the folder of Kafka's jars, fetched into the user's cache on first use.

    Raises      BrokerError
    """
    install_programs(say)
    folder = jar_folder()
    if _fetched():
        return folder
    say(f"fetching Apache Kafka {VERSION} (44 MB, once) ...")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
        base = Path(draft)
        # Maven writes beside the pom, which may lie in a folder that is not ours.
        shutil.copy(pom_file(), base / "pom.xml")
        done = subprocess.run(
            [
                "mvn", "-q", "-B", "-f", str(base / "pom.xml"), "dependency:copy-dependencies",
                f"-DoutputDirectory={base / 'libs'}", "-DincludeScope=runtime",
            ],
            capture_output=True, text=True, check=False, timeout=_FETCH_S,
        )  # fmt: skip
        if done.returncode:
            raise BrokerError(f"Maven could not fetch Kafka:\n{done.stdout[-2000:]}")
        shutil.rmtree(folder, ignore_errors=True)
        (base / "libs").replace(folder)
    return folder


def pom_file() -> Path:
    """Give the pom: beside this module when installed, in deploy/ in the repository."""
    packaged = _HERE / "pom.xml"
    return packaged if packaged.exists() else _HERE.parents[1] / "deploy" / "kafka" / "pom.xml"


def jar_folder() -> Path:
    """Where the jars are kept."""
    return Path(platformdirs.user_cache_dir("pointillist")) / f"kafka-{VERSION}"


def _fetched() -> bool:
    return (jar_folder() / f"kafka_2.13-{VERSION}.jar").exists()


def main() -> None:
    """Fetch all that a broker needs where that is possible; say what is missing where it is not."""

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        jars(say)
    except BrokerError as error:
        say(f"tests against a broker are skipped: {error}")


if __name__ == "__main__":
    main()
