"""Markers for tests that need a special machine, and a guard against skips that nobody notices."""

from __future__ import annotations

import gc
import json
import locale
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from pointillist.broker.local import (
    BrokerOptions,
    LocalBroker,
    RunningBroker,
    installable,
    missing_programs,
)
from scripts.gpu_present import nvidia_gpus
from scripts.run_tests import KINDS
from tests.monitoring_kit import missing_monitors
from tests.postgresql_kit import server_programs

# A run that a shell put into the background ignores Ctrl-C, and so would all that tests begin.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("deep", deadline=None, max_examples=2000, stateful_step_count=60)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

MACHINES = ("root", "kafka", "postgresql", "prometheus", "gpu", "browser")
"""Markers of tests that need a special machine."""

MOST_RETRIED = 3
"""Tests of one run that may pass at another try in CI."""

_runnable_but_skipped: list[str] = []
_retried: set[str] = set()
_configs: list[pytest.Config] = []

pytest_plugins = ["tests.leftovers", "tests.fault_points", "tests.golden_kit"]

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
def local_broker_running(local_broker: LocalBroker) -> RunningBroker:
    """The same for fixtures of a module."""
    return local_broker.start()


@pytest.fixture
def broker(local_broker: LocalBroker) -> RunningBroker:
    return local_broker.start()


@pytest.fixture
def no_node_is_left() -> Iterator[None]:
    """Take away what passes for a GPU: the node that NVIDIA's library makes where root calls it."""
    yield
    if not nvidia_gpus():
        Path("/dev/nvidiactl").unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    _configs.append(config)
    # What commands keep of a user's lies beside the environment, and not in this user's home.
    os.environ.setdefault("XDG_STATE_HOME", str(config.rootpath / ".venv" / "state"))
    gc.disable()  # Next to nothing of what is collected is ever garbage.


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups, and pytest what is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what runs beside what, and give what depends on the machine's own time more tries."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_beside(item)))
        if item.get_closest_marker("live"):
            item.add_marker(pytest.mark.release)
        timed = item.get_closest_marker("live") or item.get_closest_marker("kernel")
        if timed or os.environ.get("CI"):
            item.add_marker(pytest.mark.flaky(reruns=2 if timed else 1, reruns_delay=5))
    items.sort(key=_turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where workers would not keep the groups; xdist itself says nothing."""
    gc.collect()
    gc.freeze()  # What is collected stays: the collector need not look at it again.
    gc.enable()
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and any("@" not in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist does not keep the groups of tests")


def _beside(item: pytest.Item) -> str:
    """Name the group whose tests run one after the other, on one worker: a file as a rule."""
    for marker in ("kafka", "kernel"):
        if item.get_closest_marker(marker):
            return marker
    path = item.path.relative_to(item.config.rootpath)
    return str(path.parent if path.parent.name in _SHARING else path)


_SHARING = {"browser", "judging", "stories", "witness"}
"""Folders whose files share what takes long to make."""


def _turn(item: pytest.Item) -> int:
    """Begin with what takes longest, so that no worker is left with it at the end."""
    longest = ("kafka", "kernel", "slow")
    return min((at for at, one in enumerate(longest) if item.get_closest_marker(one)), default=9)


def why_not(marker: str) -> str | None:
    """Why this machine cannot run tests with the marker; None where it can."""
    if marker == "root" and os.geteuid() != 0:
        return "needs root"
    if marker == "kafka" and (missing := missing_programs()) and not installable():
        return f"needs {' and '.join(missing)}"
    if marker == "postgresql" and server_programs() is None:
        return "needs PostgreSQL"
    if marker == "prometheus" and (missing := missing_monitors()):
        return f"needs {' and '.join(missing)}"
    if marker == "gpu" and not nvidia_gpus():
        return "needs an NVIDIA GPU"
    if marker == "browser" and not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "needs Chromium"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in MACHINES:
        reason = why_not(marker) if item.get_closest_marker(marker) else None
        if reason:
            pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Put the locale back that a test changed, and name the test: all others would meet it."""
    if (now := locale.setlocale(locale.LC_CTYPE)) != _LOCALE:
        locale.setlocale(locale.LC_CTYPE, _LOCALE)
        item.warn(pytest.PytestWarning(f"left the locale {now}, was {_LOCALE}: {item.nodeid}"))


_LOCALE = locale.setlocale(locale.LC_CTYPE)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once, whatever ends the run; notice retries and skips that need not be."""
    if str(report.outcome) == "rerun":  # pytest-rerunfailures says so
        _retried.add(report.nodeid)
    terminal = _configs[0].pluginmanager.getplugin("terminalreporter")
    if report.failed and terminal is not None:
        terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})")
    markers = [marker for marker in MACHINES if marker in report.keywords]
    if report.skipped and markers and all(why_not(marker) is None for marker in markers):
        _runnable_but_skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()
    if os.environ.get("CI") and (_runnable_but_skipped or len(_retried) > MOST_RETRIED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)  # after what else fails a session
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests.leftovers import said, say  # pytest itself imports plugins first

    say(terminalreporter, "SKIPPED THOUGH THIS MACHINE CAN RUN IT", _runnable_but_skipped)
    if os.environ.get("CI") and len(_retried) > MOST_RETRIED:
        say(terminalreporter, "RETRIED TOO OFTEN", [f"expected at most {MOST_RETRIED} tests"])
    if file := os.environ.get(KINDS):
        kinds = {
            kind: [getattr(one, "nodeid", str(one)) for one in of]
            for kind, of in terminalreporter.stats.items()
        }
        Path(file).write_text(json.dumps(kinds | said), encoding="utf-8")
