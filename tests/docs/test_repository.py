"""The repository itself: what its files may name, and what must agree."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from aggregator.party.config import load_helper_config, load_leader_config
from aggregator.witness.service import load_witness_config
from edge_agent.config import load_config
from pointillist.alerts.alert import load_alerts_config
from wire.rejection import Reason

REPOSITORY = Path(__file__).resolve().parents[2]

# Split, so that this file does not name them.
REGISTRY_HOSTS = [
    "pypi." + "org", "pythonhosted." + "org", "npmjs." + "org", "registry." + "npmjs",
    "proxy.golang." + "org", "repo.maven." + "apache.org", "repo1." + "maven.org",
    "crates." + "io",
]  # fmt: skip
MAX_FILE_BYTES = 2_000_000
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_files() -> list[Path]:
    """Files under version control; in a source archive, which has none, the test is skipped."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [REPOSITORY / name for name in result.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_files_name_no_package_registry() -> None:
    found = [
        (str(path.relative_to(REPOSITORY)), host)
        for path in tracked_files()
        for host in REGISTRY_HOSTS
        if host.encode() in path.read_bytes()
    ]
    assert found == []


def test_files_name_no_place_of_one_machine() -> None:
    places = [b"/" + b"work/", b"/" + b"root/", b"/home" + b"/"]
    found = [
        str(path.relative_to(REPOSITORY))
        for path in tracked_files()
        if any(place in path.read_bytes() for place in places)
    ]
    assert found == []


def test_files_are_small_enough_for_a_repository() -> None:
    large = [str(path) for path in tracked_files() if path.stat().st_size > MAX_FILE_BYTES]
    assert large == []


def test_requirements_are_pinned_by_hash() -> None:
    files = sorted((REPOSITORY / "requirements").glob("*.txt"))
    assert len(files) > 5
    for name in (path.stem for path in files):
        text = (REPOSITORY / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
        blocks = re.split(r"\n(?=[a-z])", text.strip())
        assert blocks, name
        for block in blocks:
            first = block.splitlines()[0]
            assert re.match(r"[a-z0-9.-]+==\S+", first), first
            assert "--hash=sha256:" in block, first


def test_requirement_files_hold_what_pyproject_declares_and_the_lowest_its_minimums() -> None:
    base, extras = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
    groups = PROJECT["dependency-groups"]
    programs = {
        name: [*base, *extras[name]] for name in ("agent", "aggregator", "web", "simulator")
    }
    run = [one for some in programs.values() for one in some] + extras["witness-postgresql"]
    wanted = {
        **programs,
        "parties": [one for one in run if one not in extras["simulator"]],
        "run": run,
        "dev": [*run, *extras["training"], *groups["dev"]],
        "lowest": [*run, *extras["training"], *groups["dev"]],
        "notebook": [*programs["simulator"], *extras["notebook"]],
        "build": [*groups["build"], *PROJECT["build-system"]["requires"]],
        "spark": [*base, *extras["spark"]],
    }
    for file, declared in wanted.items():
        text = (REPOSITORY / "requirements" / f"{file}.txt").read_text(encoding="utf-8")
        pinned: dict[str, set[str]] = defaultdict(set)
        for name, version in re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE):
            pinned[name].add(version)
        for one in map(Requirement, declared):
            if one.name == "pointillist":
                continue
            versions = {version for version in pinned[one.name] if version in one.specifier}
            assert versions, f"make lock; {file}.txt has {pinned[one.name]} for {one}"
            least = {Version(part.version) for part in one.specifier if part.operator == ">="}
            if file == "lowest":  # else the minimum is no version that tests were run with
                assert least <= set(map(Version, versions)), f"{one}: {versions} were run"


LOWEST_PYTHON = (
    r"\(3, (\d+)\)", r"'>=3\.(\d+)'", r"Python 3\.(\d+) or",
    r"--no-header --python-version 3\.(\d+)",
    r'python_version = "3\.(\d+)"', r'"py3(\d+)"', r"python=3\.(\d+)",
    r"python3\.(\d+)/dist-packages",
)  # fmt: skip
"""Where files name it: what is checked, locked for, built for, and what images have."""


def test_every_file_names_the_lowest_python_of_pyproject() -> None:
    project = PROJECT["project"]
    minor = project["requires-python"].removeprefix(">=3.")
    named = [line.rpartition("3.")[2] for line in project["classifiers"] if ":: 3." in line]
    assert (named[0], len(named)) == (minor, 2)  # the lowest, and the newest that tests run by
    places = ("pyproject.toml", "README.md", "docs/contributing.md", "deploy/images/Containerfile")
    files = [*map(REPOSITORY.joinpath, places), *(REPOSITORY / "scripts").glob("*.sh")]
    for pattern in LOWEST_PYTHON:
        found = {one for file in files for one in re.findall(pattern, file.read_text("utf-8"))}
        assert found == {minor}, pattern


def test_npm_lock_names_no_address() -> None:
    lock = json.loads((REPOSITORY / "scripts/buf/package-lock.json").read_text(encoding="utf-8"))
    for name, package in lock["packages"].items():
        assert "resolved" not in package
        assert not name or package["integrity"].startswith("sha512-")


@pytest.mark.parametrize("suffix", ["toml", "json", "yaml", "yml"])
def test_config_files_parse(suffix: str) -> None:
    for path in tracked_files():
        if path.suffix != f".{suffix}" or "bad" in path.stem or "templates" in path.parts:
            continue  # a chart's templates are YAML once helm has rendered them
        text = path.read_text(encoding="utf-8")
        if suffix == "toml":
            tomllib.loads(text)
        elif suffix == "json":
            json.loads(text)
        else:
            yaml.safe_load(text)


def test_every_config_sample_is_accepted_by_its_program() -> None:
    loaders: dict[str, Callable[[Path], object]] = {
        "agent.toml": load_config,
        "leader.toml": load_leader_config,
        "helper.toml": load_helper_config,
        "witness.toml": load_witness_config,
        "alerts.toml": load_alerts_config,
    }
    samples = {path.name: path for path in (REPOSITORY / "deploy" / "config").iterdir()}
    assert samples.keys() == loaders.keys()
    for name, path in samples.items():
        loaders[name](path)


def test_every_rejection_reason_is_documented() -> None:
    specification = (REPOSITORY / "wire" / "SPEC.md").read_text(encoding="utf-8")
    docs = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").glob("*.md"))
    assert [str(r) for r in Reason if f"`{r}`" not in specification] == []
    assert [str(r) for r in Reason if f"`{r}`" not in docs] == []


def test_every_page_is_in_the_navigation() -> None:
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    assert pages == set(re.findall(r"[\w-]+\.md", text))


def test_links_of_the_readme_exist() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
    assert targets
    assert [t for t in targets if not (REPOSITORY / t).exists()] == []


def test_readme_is_short_and_reads_as_it_stands() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    assert "<!--" not in text
    assert max(map(len, text.splitlines())) <= 82


def test_workers_begin_with_what_takes_longest(pytestconfig: pytest.Config) -> None:
    """Else xdist sorts groups by their numbers of tests, and one worker is left with a long one."""
    assert not pytestconfig.option.loadscopereorder
