"""Java and Maven for a broker: what is found missing, who installs it, and what is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pointillist.broker import local
from pointillist.broker.local import BrokerError, install_programs, java_version, missing_programs
from tests.conftest import why_not

JAVA = 'echo "openjdk version \\"{}\\" 2025-04-15" >&2'


class FakePath:
    """A PATH with nothing on it but what a test puts there; no jars are kept yet."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.calls = folder / "calls"
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", str(folder / "bin"))
        monkeypatch.setattr(local, "jar_folder", lambda: folder / "kept")

    def add(self, name: str, script: str) -> None:
        path = self._folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def java(self, version: str) -> None:
        self.add("java", JAVA.format(version))

    def keep_jars(self) -> None:
        kept = self._folder / "kept"
        kept.mkdir()
        (kept / f"kafka_2.13-{local.VERSION}.jar").touch()

    def apt_that_installs(self, *, update: int = 0) -> None:
        """Note each call; `install` puts Java and Maven on PATH."""
        programs = self._folder / "bin"
        self.add(
            "apt-get",
            f'echo "$*" >> {self.calls}\n'
            f'case "$2" in update) exit {update};; esac\n'
            f"printf '#!/bin/sh\\n{JAVA.format('17.0.15')}\\n' > {programs}/java\n"
            f": > {programs}/mvn\n/bin/chmod 755 {programs}/java {programs}/mvn",
        )

    def as_user(self, number: int) -> None:
        self._monkeypatch.setattr(os, "geteuid", lambda: number)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePath:
    return FakePath(tmp_path, monkeypatch)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def say(said: list[str]) -> Callable[[str], None]:
    return said.append


@pytest.mark.parametrize(
    ("told", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25)]
)
def test_java_tells_its_major_version(path: FakePath, told: str, major: int) -> None:
    assert java_version() == 0
    path.java(told)
    assert java_version() == major


def test_java_that_tells_nothing_counts_as_none(path: FakePath) -> None:
    path.add("java", "exit 1")
    assert java_version() == 0


def test_missing_programs_are_named_and_maven_only_where_jars_are(path: FakePath) -> None:
    assert missing_programs() == ["Java 17 or later", "Maven"]
    path.java("17.0.15")
    assert missing_programs() == ["Maven"]
    path.keep_jars()
    assert missing_programs() == []


def test_java_that_is_too_old_is_told_with_its_version(
    path: FakePath, say: Callable[[str], None]
) -> None:
    path.java("11.0.2")
    path.add("mvn", "exit 0")
    path.as_user(1000)
    with pytest.raises(BrokerError, match=r"needs Java 17 or later \(found 11\); on Debian"):
        install_programs(say)


def test_old_numbering_of_java_is_told_as_people_know_it(path: FakePath) -> None:
    path.java("1.8.0_402")
    assert missing_programs()[0] == "Java 17 or later (found 8)"


def test_user_who_is_not_root_is_told_the_command(
    path: FakePath, say: Callable[[str], None], said: list[str]
) -> None:
    path.apt_that_installs()
    path.as_user(1000)
    with pytest.raises(BrokerError, match=r"as root: apt-get install .*default-jre-headless maven"):
        install_programs(say)
    assert not path.calls.exists()
    assert said == []


def test_root_without_apt_is_told_the_command(path: FakePath, say: Callable[[str], None]) -> None:
    path.as_user(0)
    with pytest.raises(BrokerError, match="Kafka needs Java 17 or later and Maven; on Debian"):
        install_programs(say)


@pytest.mark.parametrize("update", [0, 100])
def test_root_installs_what_is_missing_with_old_lists_too(
    path: FakePath, say: Callable[[str], None], said: list[str], update: int
) -> None:
    path.apt_that_installs(update=update)
    path.as_user(0)
    install_programs(say)
    (line,) = said
    assert line.startswith("installing Java 17 or later and Maven: apt-get install ")
    assert path.calls.read_text().splitlines() == [
        "-qq update",
        "-qq install -y --no-install-recommends default-jre-headless maven",
    ]
    install_programs(say)  # nothing is missing now: nothing is said, nothing is run
    assert len(said) == 1


def test_install_that_fails_says_why(path: FakePath, say: Callable[[str], None]) -> None:
    path.add("apt-get", 'echo "E: Unable to locate package maven" >&2; exit 100')
    path.as_user(0)
    with pytest.raises(BrokerError, match="maven failed: E: Unable to locate package maven"):
        install_programs(say)


def test_install_after_which_java_is_still_too_old_says_so(
    path: FakePath, say: Callable[[str], None]
) -> None:
    path.add("apt-get", "exit 0")
    path.add("mvn", "exit 0")
    path.java("11.0.2")
    path.as_user(0)
    with pytest.raises(BrokerError, match=r"expected Java 17 or later \(found 11\) after apt-get"):
        install_programs(say)


def test_maven_that_cannot_fetch_leaves_no_jars_behind(
    path: FakePath, say: Callable[[str], None], tmp_path: Path
) -> None:
    path.java("17.0.15")
    path.add("mvn", 'echo "Could not resolve org.apache.kafka"; exit 1')
    with pytest.raises(BrokerError, match=r"could not fetch Kafka:\nCould not resolve"):
        local.jars(say)
    assert not (tmp_path / "kept").exists()


def test_tests_against_a_broker_are_skipped_only_where_root_cannot_install(path: FakePath) -> None:
    path.as_user(1000)
    assert why_not("kafka") == "needs Java 17 or later and Maven"
    path.as_user(0)
    path.apt_that_installs()
    assert why_not("kafka") is None
