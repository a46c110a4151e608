"""The chart, judged by helm, Kubernetes' schemas and the programs that read what it renders."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.party.config import load_helper_config, load_leader_config
from edge_agent.config import load_config

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / ".tools" / "charts"
CHART = ROOT / "deploy" / "helm" / "pointillist"
PLACES = ("cluster", "leader", "helper")
"""Whose cluster: each has a file of values in ci/."""
VERSIONS = ("1.30", "1.34")
SAME_KEY = "00112233445566778899aabbccddeeff" * 2
LOADERS: dict[str, Callable[[Path], object]] = {
    "agent": load_config,
    "leader": load_leader_config,
    "helper": load_helper_config,
}

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True, scope="module")
def tools() -> None:
    if not (TOOLS / ".built").exists():
        pytest.skip(f"needs {TOOLS}: make charts")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLS / "bin" / "helm", *arguments], capture_output=True, text=True, check=False
    )


def template(
    place: str, *options: str, version: str = VERSIONS[0]
) -> subprocess.CompletedProcess[str]:
    values = ("--values", f"{CHART}/ci/{place}-values.yaml", "--kube-version", f"{version}.0")
    return helm("template", "fleet", str(CHART), "--namespace", "pointillist", *values, *options)


def rendered(place: str, *options: str, version: str = VERSIONS[0]) -> list[dict[str, Any]]:
    done = template(place, *options, version=version)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (document for document in documents if document["kind"] == kind)


@pytest.mark.parametrize("place", PLACES)
def test_chart_passes_helms_own_lint(place: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", f"{CHART}/ci/{place}-values.yaml")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_chart_is_what_kubernetes_takes(place: str, version: str, tmp_path: Path) -> None:
    documents = rendered(place, version=version)
    core = [document for document in documents if document["kind"] != "PodMonitor"]
    written = tmp_path / "rendered.yaml"
    written.write_text(yaml.safe_dump_all(core))
    done = subprocess.run(
        [TOOLS / "venv" / "bin" / "kubernetes-validate", "-k", version, "--strict", written],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_pod_monitor_is_what_the_prometheus_operator_takes() -> None:
    (monitor,) = of_kind(rendered("leader"), "PodMonitor")
    assert _read_monitor(monitor).returncode == 0
    monitor["spec"]["podMetricsEndpoint"] = []
    assert "podMetricsEndpoint" in _read_monitor(monitor).stderr


def _read_monitor(monitor: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLS / "bin" / "podmonitor"],
        input=yaml.safe_dump(monitor), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_rendered_configurations_are_read_by_their_programs(place: str, tmp_path: Path) -> None:
    found = {}
    for document in of_kind(rendered(place), "ConfigMap"):
        for name, text in document["data"].items():
            path = tmp_path / name
            path.write_text(text)
            found[path.stem] = LOADERS[path.stem](path)
    assert list(found) == ["agent" if place == "cluster" else place]


def test_agents_are_one_manifest_with_one_secret_of_tokens() -> None:
    (agents,) = of_kind(rendered("cluster"), "DaemonSet")
    pod = agents["spec"]["template"]["spec"]
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == ["pointillist-tokens", "pointillist-kafka"]
    tokens = next(volume for volume in pod["volumes"] if volume["name"] == "tokens")
    assert tokens["secret"]["optional"]  # nodes that have joined start without it
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"]["drop"] == ["ALL"]
    kept = {"BPF", "PERFMON", "SYSLOG", "SYS_PTRACE", "DAC_READ_SEARCH"}
    dropped = {"SETUID", "SETGID", "SETPCAP", "CHOWN", "FOWNER", "DAC_OVERRIDE"}
    assert set(context["capabilities"]["add"]) == kept | dropped


def test_agent_without_probes_has_no_right_to_look_into_processes() -> None:
    chosen = ("--set", "agent.sources.probes=false", "--set", "agent.perfEvents=true")
    (agents,) = of_kind(rendered("cluster", *chosen), "DaemonSet")
    (container,) = agents["spec"]["template"]["spec"]["containers"]
    added = set(container["securityContext"]["capabilities"]["add"])
    assert "SYS_ADMIN" in added
    assert not added & {"SYS_PTRACE", "DAC_READ_SEARCH"}
    assert "appArmorProfile" not in container["securityContext"]


@pytest.mark.parametrize("place", ["leader", "helper"])
def test_parties_run_without_root_behind_network_policies(place: str) -> None:
    documents = rendered(place)
    sets = list(of_kind(documents, "StatefulSet"))
    for pod in (one["spec"]["template"]["spec"] for one in sets):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
    chosen = [p["spec"]["podSelector"]["matchLabels"] for p in of_kind(documents, "NetworkPolicy")]
    component = "app.kubernetes.io/component"
    roles = [one["spec"]["selector"]["matchLabels"][component] for one in sets]
    assert sorted(labels[component] for labels in chosen) == sorted(roles)


@pytest.mark.parametrize("place", ["leader", "helper"])
def test_no_policy_lets_everybody_in_but_to_the_pages(place: str) -> None:
    """A rule without `from`, or with an empty one, is a rule for all."""
    for policy in of_kind(rendered(place), "NetworkPolicy"):
        role = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        open_rules = [rule for rule in policy["spec"]["ingress"] if not rule.get("from")]
        assert len(open_rules) == (1 if role == "web" else 0), role


def test_leader_calls_named_networks_alone_where_they_are_named() -> None:
    kafka, helper = "198.51.100.0/24", "203.0.113.7/32"
    named = f"kafka.networks[0]={kafka},leader.helperNetworks[0]={helper}"
    for options, places in (((), set()), (("--set", named), {kafka, helper})):
        policies = of_kind(rendered("leader", *options), "NetworkPolicy")
        (rules,) = (
            policy["spec"]["egress"]
            for policy in policies
            if policy["metadata"]["name"].endswith("leader")
        )
        found = {to["ipBlock"]["cidr"] for rule in rules for to in rule.get("to", ())}
        assert found == places
        without = [rule for rule in rules if "to" not in rule]
        assert len(without) == (1 if places else 3)  # DNS, wherever it is


def test_helper_calls_its_witness_alone_where_that_is_named() -> None:
    witness = {"cidr": "192.0.2.9/32"}
    named = f"helper.witnessNetworks[0]={witness['cidr']},helper.witnessPort=5432"
    for options, rules in (
        ((), []),
        (
            ("--set", named),
            [{"ports": [{"protocol": "TCP", "port": 5432}], "to": [{"ipBlock": witness}]}],
        ),
    ):
        (policy,) = of_kind(rendered("helper", *options), "NetworkPolicy")
        assert policy["spec"]["egress"][1:] == rules  # the first is DNS


@pytest.mark.parametrize("place", ["leader", "helper"])
def test_signed_folder_is_made_before_files_are_copied_into_it(place: str) -> None:
    documents = rendered(place)
    (config,) = (one["data"] for one in of_kind(documents, "ConfigMap"))
    (party,) = (
        container["command"]
        for one in of_kind(documents, "StatefulSet")
        for container in one["spec"]["template"]["spec"]["containers"]
        if container["name"] == place
    )
    made = party[party.index("--signed") + 1]
    assert f'signed_dir = "{made}"' in config[f"{place}.toml"]


def test_helpers_service_shows_who_calls_and_takes_calls_of_the_leader_alone() -> None:
    (service,) = of_kind(rendered("helper"), "Service")
    assert service["spec"]["externalTrafficPolicy"] == "Local"
    assert service["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/28"]
    (inside,) = of_kind(rendered("helper", "--set", "helper.service.type=ClusterIP"), "Service")
    assert not {"externalTrafficPolicy", "loadBalancerSourceRanges"} & set(inside["spec"])


def test_values_that_look_like_other_types_stay_text() -> None:
    documents = rendered(
        "leader", "--set-string", "web.name=yes", "--set-string", "leader.storage.className=123",
        "--set-string", "networkPolicies.monitoringNamespace=123",
    )  # fmt: skip
    web = next(s for s in of_kind(documents, "StatefulSet") if s["metadata"]["name"] == "fleet-web")
    (container,) = web["spec"]["template"]["spec"]["containers"]
    assert all(isinstance(word, str) for word in container["args"])
    text = yaml.safe_dump_all(documents)
    assert "kubernetes.io/metadata.name: '123'" in text
    assert "storageClassName: '123'" in text


@pytest.mark.parametrize("place", PLACES)
def test_chart_makes_no_secret(place: str) -> None:
    assert list(of_kind(rendered(place), "Secret")) == []


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ("leader", ("--set", "helper.enabled=true"), "two organisations"),
        ("helper", ("--set", "web.enabled=true"), "expected leader.enabled"),
        ("cluster", ("--set", "kafka.tls=false"), "kafka.tls"),
        ("cluster", ("--set", "parties.leader=00aa"), "parties"),
        ("cluster", ("--set", "agent.sourcs.ebpf=true"), "sourcs"),
        ("cluster", ("--set", "parties.helper="), "parties.helper"),
        ("helper", ("--set", "helper.leaderNetworks=null"), "leaderNetworks"),
        ("helper", ("--set-json", "helper.leaderNetworks=[]"), "lets everybody in"),
        ("helper", ("--set-json", 'helper.leaderNetworks=["everywhere"]'), "leaderNetworks"),
        ("cluster", ("--set-json", "kafka.bootstrap=[]"), "kafka.bootstrap"),
        ("cluster", ("--set-json", r'kafka.bootstrap=["a\"\nb:1"]'), "kafka/bootstrap"),
        ("cluster", ("--set", f"parties.helper={SAME_KEY}"), "two keys"),
        ("cluster", ("--set", "agent.stateDir=/"), "stateDir"),
    ],
)
def test_chart_refuses_what_cannot_be_meant(
    place: str, options: tuple[str, ...], said: str
) -> None:
    done = template(place, *options)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_wrong_field_is_seen_by_the_schema(tmp_path: Path) -> None:
    broken = tmp_path / "chart"
    shutil.copytree(CHART, broken)
    agent = broken / "templates" / "agent.yaml"
    agent.write_text(agent.read_text().replace("hostPID:", "hostPid:"))
    values = ("--values", f"{CHART}/ci/cluster-values.yaml", "--kube-version", "1.30.0")
    text = helm("template", "fleet", str(broken), *values).stdout
    (tmp_path / "rendered.yaml").write_text(text)
    done = subprocess.run(
        [TOOLS / "venv" / "bin" / "kubernetes-validate", "-k", "1.30", "--strict",
         tmp_path / "rendered.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "hostPid" in done.stdout + done.stderr
