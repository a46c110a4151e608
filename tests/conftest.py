"""Markers for tests that need a special machine, and a guard against skips that nobody notices."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from pointillist.broker.jars import installable, missing_programs
from pointillist.broker.local import BrokerOptions, LocalBroker, Running

settings.register_profile("quick", deadline=None, max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_runnable_but_skipped: list[str] = []

LIVE = ("root", "kafka", "browser", "live")
"""Markers of tests that watch a real kernel, broker, browser or processes run in real time."""
LIVE_FOLDERS = {"integration", "fault", "transport", "local"}
"""Folders of tests that are so throughout."""

_UNSECURED_TOKENS = {
    # Tokens without a signature: a test's own identity provider.
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.secure.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}


@pytest.fixture(scope="session")
def local_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """One broker for the whole session; a test that stops it starts it again."""
    options = BrokerOptions(secure=True, extra=_UNSECURED_TOKENS)
    made = LocalBroker(tmp_path_factory.mktemp("kafka"), options)
    made.start(print)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def local_broker_running(local_broker: LocalBroker) -> Running:
    """The same for fixtures of a module."""
    return local_broker.start()


@pytest.fixture
def broker(local_broker: LocalBroker) -> Running:
    """The running broker's addresses."""
    return local_broker.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what depends on the machine's own time more tries, which the summary names.

    Whoever shares the machine takes CPU time from it, and bounds of such tests are those of a
    machine of its own. A test of pure code gets one try.
    """
    for item in items:
        by_folder = item.path.parent.name in LIVE_FOLDERS
        if by_folder or any(item.get_closest_marker(marker) for marker in LIVE):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=5))


def why_not(marker: str) -> str | None:
    """Why this machine cannot run tests with the marker; None where it can."""
    if marker == "root" and os.geteuid() != 0:
        return "needs root"
    if marker == "kafka" and (missing := missing_programs()) and not installable():
        return f"needs {' and '.join(missing)}"
    if marker == "gpu" and not os.access("/dev/nvidiactl", os.R_OK):
        return "needs an NVIDIA GPU"
    if marker == "browser" and not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "needs Chromium"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in ("root", "kafka", "gpu", "browser"):
        reason = why_not(marker) if item.get_closest_marker(marker) else None
        if reason:
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    markers = [m for m in ("root", "kafka", "gpu", "browser") if item.get_closest_marker(m)]
    if report.skipped and markers and all(why_not(m) is None for m in markers):
        _runnable_but_skipped.append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _runnable_but_skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in _runnable_but_skipped:
        terminalreporter.write_line(f"SKIPPED THOUGH THIS MACHINE CAN RUN IT: {nodeid}")
