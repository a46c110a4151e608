"""This host's own pages: what they show, to whom, and that nothing of it comes from elsewhere."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from collectors.gpu_calls.gpu_probes import ProbesSection
from collectors.gpu_time.gpu_time_source import GpuTimeSection
from collectors.records.gpu_time import summed
from edge_agent.config import AgentConfig, DiagnosisSection, SourcesSection
from edge_agent.host_page.gpu_panels import kernels_panel
from edge_agent.host_page.host_pages import PAGES, SPANS, HostState, page_html
from edge_agent.host_page.host_reading import HostReading
from edge_agent.host_page.page_server import users_of_page
from edge_agent.host_page.peer_owner import owner_of
from edge_agent.journal import Journal
from edge_agent.local.history import History, HistorySection
from edge_agent.local.local_rows import EventRow
from edge_agent.local.view import view_of
from pages.layout import ASSETS, PAGE_HEADERS, asset_address
from tests.calls_kit import GEMM
from tests.diagnosis_kit import JOB, NOISE
from tests.gpu_times_kit import gpu_times
from tests.host_page_kit import GPUS, WINDOWS, ShownHost, host_client, shown_host, slow_job
from tests.local_kit import BOOT, POINT, UNIX, S, activity, flattener

HOSTILE = '<script>alert(1)</script>"&{{7*7}}'


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ShownHost:
    found = slow_job()
    hostile = [replace(finding, subject=HOSTILE) for finding in found]
    made = shown_host(tmp_path_factory.mktemp("host"), [*found, *hostile])
    config = made.reading.config
    history = History(config.history_file, config.history)
    history.add([EventRow(HOSTILE, HOSTILE, HOSTILE, (made.now_s - 60) * S, HOSTILE)])
    history.close()
    return made


@pytest.fixture(scope="module")
def asked(host: ShownHost) -> TestClient:
    return host_client(host)


def text_of(asked: TestClient, address: str) -> str:
    answer = asked.get(address)
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def test_busy_page_shows_each_gpu_and_where_its_time_went(asked: TestClient) -> None:
    text = text_of(asked, "/host")
    assert [GPU[4:12] in text for GPU in GPUS] == [True, True]
    assert "Most GPU time went to gemm" in text
    assert "flash_fwd_kernel" in text
    assert "from least to most" in text
    assert "; 95 % interval" not in text  # what was counted here has no sampling error


def test_calls_page_shows_launches_with_their_error_and_the_process(asked: TestClient) -> None:
    text = text_of(asked, "/calls")
    assert f"{GEMM} is launched most: 2,238.8/s" in text
    assert re.search(r'data-said="paged_attention_v2 · vllm: [^"]*95 % interval [^"]*/s', text)
    assert "job 77, pod 0f0f0f0f-0000" in text


def test_diagnosis_is_shown_with_its_evidence_and_what_to_do(asked: TestClient) -> None:
    text = text_of(asked, "/diagnoses")
    assert f"cpu contention: others wanted the CPUs, by {NOISE}" in text
    assert JOB in text
    assert "threads waited … for a CPU" in text
    assert "Give the other group less" in text
    assert "median step: 10" in text


def test_health_page_says_what_happened_and_that_no_agent_runs(asked: TestClient) -> None:
    text = text_of(asked, "/health")
    assert "XID 63: a row was remapped" in text
    assert "No agent runs here" in text


def test_each_report_leads_to_what_was_put_in_and_its_noise(asked: TestClient) -> None:
    text = text_of(asked, "/sent")
    links = re.findall(r'href="(/sent\?[^"]*report=[0-9a-f]{32})"', text)
    assert len(links) == WINDOWS
    one = text_of(asked, links[0])
    assert "masked and under noise" in one
    assert re.search(r'data-said="user: within ±[^"]*under the noise, 95 %[^"]*mostly noise', one)


def test_pages_name_nothing_outside_and_carry_the_policy(asked: TestClient) -> None:
    for page in PAGES:
        answer = asked.get(f"/{page.name}")
        addresses = re.findall(r'(?:src|href|action)="([^"]*)"', answer.text)
        assert [a for a in addresses if not a.startswith(("/", "#"))] == []
        assert {name: answer.headers[name] for name in PAGE_HEADERS} == dict(PAGE_HEADERS)
        assert answer.headers["cache-control"] == "no-store"
    assert {asked.get(asset_address(name)).status_code for name in ASSETS} == {200}


@pytest.mark.parametrize("user", [None, 1234])
def test_another_user_of_the_host_sees_nothing(host: ShownHost, user: int | None) -> None:
    stranger = host_client(host, user=user)
    for address in ("/host", "/sent", asset_address("page.css"), "/nothing"):
        answer = stranger.get(address)
        assert (answer.status_code, GPUS[0][4:12] in answer.text) == (403, False)


def test_foreign_name_and_other_methods_are_refused(host: ShownHost, asked: TestClient) -> None:
    assert host_client(host, name="evil.example").get("/host").status_code == 400
    assert host_client(host, name="localhost").get("/host").status_code == 200
    assert [asked.request(m, "/host").status_code for m in ("POST", "PUT", "DELETE")] == [405] * 3


@pytest.mark.parametrize(
    ("address", "status"),
    [("/host?span=1y", 422), ("/host?other=1", 422), ("/sent?report=zz", 422), ("/static/x/y", 404),
     ("/sent?report=" + 32 * "0", 200)],
)  # fmt: skip
def test_address_that_cannot_be_is_refused_and_not_repeated(
    asked: TestClient, address: str, status: int
) -> None:
    answer = asked.get(address)
    assert answer.status_code == status
    assert "zz" not in answer.text
    if status == 200:
        assert "No report of this host has this id." in answer.text


def test_parameter_that_a_page_does_not_know_is_named_with_those_it_knows(
    asked: TestClient,
) -> None:
    said = asked.get("/host?colour=red").text
    assert said == "no such parameter: colour; known are span, report\n"


def test_page_has_a_tag_that_changes_with_what_it_shows(host: ShownHost) -> None:
    tag = host_client(host).get("/host").headers["etag"]
    assert host_client(host).get("/host").headers["etag"] == tag
    later = replace(host, now_s=host.now_s + 600)
    assert host_client(later).get("/host").headers["etag"] != tag


def test_hostile_names_stay_text(asked: TestClient) -> None:
    for page in PAGES:
        assert "<script>alert" not in asked.get(f"/{page.name}").text
    assert HOSTILE in text_of(asked, "/diagnoses")
    assert HOSTILE in text_of(asked, "/health")


def test_state_that_is_not_there_or_damaged_is_said(tmp_path: Path) -> None:
    host = shown_host(tmp_path)
    config = host.reading.config
    asked = host_client(host)
    assert "became slower than usual" in text_of(asked, "/diagnoses")
    kept = config.history_file.read_bytes()
    config.history_file.write_bytes(kept[:8192] + bytes(len(kept) - 8192))  # its schema stands
    assert "The local history cannot be read" in text_of(asked, "/host?span=6h")
    config.history_file.write_bytes(b"no history" * 1000)
    Journal(config.journal_file, 1 << 20).close()
    config.journal_file.write_bytes(b"{}\nnot a finding\n")
    assert "The local history cannot be read" in text_of(asked, "/host")
    assert "became slower than usual" in text_of(asked, "/diagnoses")
    config.history_file.unlink()
    assert "There is no local history" in text_of(asked, "/calls")
    config.ledger_file.write_bytes(b"no ledger" * 1000)
    assert "The ledger cannot be read" in text_of(asked, "/sent")


def off(config: AgentConfig) -> AgentConfig:
    """All that a host's pages read, switched off."""
    sources = replace(
        config.sources, host=False, gpus=False, faults=False, ebpf=False,
        probes=ProbesSection(enabled=False), gpu_time=GpuTimeSection(enabled=False),
    )  # fmt: skip
    diagnosis, history = DiagnosisSection(enabled=False), HistorySection(enabled=False)
    return replace(config, sources=sources, diagnosis=diagnosis, history=history)


def on(config: AgentConfig) -> AgentConfig:
    """All of it switched on."""
    sources = SourcesSection(ebpf=True, gpu_time=GpuTimeSection(enabled=True))
    return replace(config, sources=sources)


SAID_OFF = {
    "host": "history.enabled, sources.host, sources.gpus, sources.gpu_time.enabled.",
    "calls": "history.enabled, sources.probes.enabled.",
    "diagnoses": "diagnosis.enabled, sources.ebpf.",
    "health": "history.enabled, sources.gpus, sources.faults.",
}


@pytest.mark.parametrize("settings", [on, off])
@pytest.mark.parametrize("kept", ["nothing", "empty files"])
def test_host_that_measured_nothing_has_pages_that_say_so(
    settings: Callable[[AgentConfig], AgentConfig], kept: str, host: ShownHost, tmp_path: Path
) -> None:
    config = settings(host.reading.config)
    config = replace(config, host=replace(config.host, state_dir=tmp_path, gpus=()))
    if kept == "empty files":
        History(config.history_file, config.history).close()
        Journal(config.journal_file, 1 << 20).close()
    reading = HostReading(config, lambda: float(host.now_s))
    for page in PAGES:
        for span in SPANS:
            text = unescape(page_html(page, reading, HostState(span)))
            said = SAID_OFF.get(page.name) if settings is off else None
            assert ("Switched off in the agent" in text) is (said is not None)
            assert said is None or f"so not measured here: {said}" in text
            assert not re.search(r"\bnan\b|\bNone\b", text)


def test_kernels_that_are_timed_in_their_processes_come_with_their_error(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite")
    history.note_clock(POINT)
    rows: list[object] = [activity(BOOT + 5 * S, "seen_elsewhere")]
    rows += [gpu_times(BOOT + second * S) for second in range(20)]
    history.add(flattener().rows("gpu_time", rows))
    history.close()
    view = view_of(tmp_path / "history.sqlite", UNIX - S, UNIX + 60 * S, steps=10, gpus=1)
    timed = gpu_times().processes[0].kernels[0]
    (gemm,) = [line for line in view.kernels if (line.kernel, line.gpu) == (timed.kernel, 0)]
    time = summed([timed.time] * 20)
    assert gemm.gpu_ms is not None
    assert gemm.seconds == 20
    assert gemm.gpu_ms.value == pytest.approx(time.value_ns / 1e6 / 20)
    assert gemm.gpu_ms.error == pytest.approx((time.error_ns or 0.0) / 1e6 / 20)
    in_steps = sum(step.family_shares["gemm"] * step.span_ns for step in view.steps)
    assert in_steps == pytest.approx(20 * gpu_times().processes[0].families[0].time.value_ns)
    assert "seen_elsewhere" not in {line.kernel for line in view.kernels}
    text = str(kernels_panel(view).drawing)
    assert re.search(r"95 % interval [0-9.]+ to [0-9.]+ s", text)


def test_kernel_tells_whose_socket_asks(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            ends = client.getsockname(), server.getsockname()
            assert owner_of(*ends) == os.geteuid()
            assert owner_of(ends[0], (ends[1][0], 1)) is None
            assert owner_of(*ends, tmp_path / "gone") is None
        with accepted:
            # Its process is gone: the table no longer says whose it was.
            assert owner_of(*ends) is None


def test_who_became_root_by_sudo_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1001")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert users_of_page() == {0, 1001}
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert users_of_page() == {0, 1000}  # anybody can set a variable
