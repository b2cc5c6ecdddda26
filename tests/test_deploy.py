"""What lies in deploy/ names things that exist, and keeps to what it promises. Nothing of it is run here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from colmlm.api.settings import ServerSettings
from colmlm.api.watch.metrics import Metrics
from colmlm.kb.errors import SettingsError
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, ingest
from tests.places import ROOT
from tests.test_docs import fault_of, settings_read

DEPLOY = ROOT / "deploy"
VENV = Path(sys.executable).parent
METRIC = re.compile(r"\b((?:colmlm|process)_[a-z_]+)\b")
ENVIRONMENT = re.compile(r"COLMLM_[A-Z_]+")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def our_services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: s for name, s in compose["services"].items() if s["image"] == "colmlm"}


def test_every_metric_of_the_dashboard_exists(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.lookups.catch_up()
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in METRIC.findall(expression)}
    text = Metrics(kb).text().decode()
    exported = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | set(METRIC.findall(text))
    histograms = set(re.findall(r"^# TYPE (\S+) histogram", text, re.MULTILINE))
    exported |= {f"{name}_bucket" for name in histograms}
    assert len(expressions) > 10 and named - exported == set()
    ours = {
        name
        for name in re.findall(r"^# TYPE (colmlm_\S+)", text, re.MULTILINE)
        if not name.endswith("_created")
    }
    unseen = {name for name in ours if not any(name in expression for expression in expressions)}
    assert unseen == set(), "a metric that nobody looks at"


@pytest.mark.parametrize("name", ["compose.yaml", "Dockerfile", "colmlm.service", "kuberay.yaml"])
def test_every_setting_named_exists(name: str) -> None:
    assert set(ENVIRONMENT.findall((DEPLOY / name).read_text())) <= settings_read()


def test_the_services_run_commands_that_exist(compose: dict[str, Any]) -> None:
    commands = [" ".join(["colmlm", *service["command"]]) for service in our_services(compose).values()]
    unit = re.findall(r"ExecStart=\S+/(colmlm .*)", (DEPLOY / "colmlm.service").read_text())
    assert unit and [fault for line in (*commands, *unit) if (fault := fault_of(line))] == []


def test_no_secret_is_in_the_compose_file_and_each_comes_from_a_file(compose: dict[str, Any]) -> None:
    used = {secret for service in compose["services"].values() for secret in service.get("secrets", ())}
    assert used == set(compose["secrets"]) and all("file" in one for one in compose["secrets"].values())
    for service in compose["services"].values():
        for variable, value in service["environment"].items():
            if value.startswith("/run/secrets/"):
                assert variable.endswith("_FILE") and Path(value).name in service["secrets"]
            assert not re.search("PASSWORD$|_URL$|API_KEY$", variable)


def test_our_containers_have_no_rights_they_do_not_need(compose: dict[str, Any]) -> None:
    for service in our_services(compose).values():
        assert service["user"] == "10001:10001" and service["read_only"] is True
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


def test_services_wait_for_what_they_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["restart"] == "no"
    for name in set(our_services(compose)) - {"migrate"}:
        conditions = {on: how["condition"] for on, how in services[name]["depends_on"].items()}
        assert conditions["migrate"] == "service_completed_successfully"
        assert conditions["postgres"] == "service_healthy" and "healthcheck" in services["postgres"]
        assert set(conditions) <= set(services)
    volumes = {volume.partition(":")[0] for s in services.values() for volume in s.get("volumes", ())}
    assert volumes == set(compose["volumes"])


@pytest.mark.skipif(shutil.which("hadolint", path=str(VENV)) is None, reason="no hadolint for this platform")
def test_the_image_is_built_as_its_linter_wants_it() -> None:
    ran = subprocess.run([VENV / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    unit = tmp_path / "colmlm.service"
    program = "ExecStart=/opt/colmlm/bin/colmlm"
    text = (DEPLOY / "colmlm.service").read_text()
    unit.write_text(text.replace(program, "ExecStart=/bin/true"))
    assert program in text
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    confined = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    assert subprocess.run(confined, capture_output=True).returncode == 0  # 2.0 of 10, ten being wide open


@pytest.fixture(scope="module")
def kuberay() -> tuple[dict[str, Any], dict[str, Any]]:
    cluster, policy = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    return cluster, policy


def ray_groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def test_the_cluster_of_ray_has_the_form_that_its_operator_reads(kuberay: tuple[Any, Any]) -> None:
    cluster, _ = kuberay
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    head, *workers = ray_groups(cluster)
    assert set(head) == {"rayStartParams", "template"} and workers
    for group in workers:
        assert set(group) == {
            "groupName",
            "replicas",
            "minReplicas",
            "maxReplicas",
            "rayStartParams",
            "template",
        }
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (head, *workers):
        # The operator hands these on as options of `ray start`, so they must be texts.
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = group["template"]["spec"]["containers"]
        assert "command" not in container, "the operator would run it in place of `ray start`"
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        # Without probes of its own a pod is given some that ask Ray's dashboard, which the image has not.
        assert all(
            container[probe]["exec"]["command"][0] == "ray" for probe in ("readinessProbe", "livenessProbe")
        )
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_the_pods_of_ray_have_no_rights_they_do_not_need_and_no_secret_in_sight(
    kuberay: tuple[Any, Any],
) -> None:
    cluster, policy = kuberay
    for group in ray_groups(cluster):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        given = {one["name"]: one["value"] for one in container["env"]}
        assert given["RAY_USAGE_STATS_ENABLED"] == "0"
        assert {name for name in given if name.startswith("COLMLM_")} <= settings_read()
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        (secret,) = [volume for volume in pod["volumes"] if "secret" in volume]
        assert given["COLMLM_DATABASE_URL_FILE"].startswith(f"{mounts[secret['name']]}/")
        assert "COLMLM_DATABASE_URL" not in given
    own = {"ray.io/cluster": cluster["metadata"]["name"]}
    assert policy["spec"]["podSelector"]["matchLabels"] == own and policy["spec"]["policyTypes"] == [
        "Ingress"
    ]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": own}}]


def test_whoever_stops_the_server_waits_for_the_drain(compose: dict[str, Any]) -> None:
    unit = (DEPLOY / "colmlm.service").read_text()
    api = compose["services"]["api"]
    drain = int(api["environment"]["COLMLM_DRAIN_SECONDS"])
    assert int(api["stop_grace_period"].removesuffix("s")) > drain
    default = ServerSettings().drain_seconds
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > default


def test_the_last_stage_runs_as_a_user_without_build_tools() -> None:
    *_, last = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE) and "HEALTHCHECK" in last
    assert not re.search(r"\bpip\b|gcc|build-essential|setuptools", last)
    build = (DEPLOY / "Dockerfile").read_text().partition("\nFROM ")[2].partition("\nFROM ")[0]
    assert "pip uninstall --yes setuptools pip" in build
    for source in re.findall(r"^COPY (?!--from)(?:--\S+ )*(\S+)", last, re.MULTILINE):
        assert (ROOT / source).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_unit_is_sound_and_hardened(tmp_path: Path) -> None:
    text = (DEPLOY / "colmlm.service").read_text().replace("/opt/colmlm/bin/colmlm", "/bin/true")
    unit = tmp_path / "colmlm.service"
    unit.write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    ran = subprocess.run(verify, text=True, capture_output=True)
    assert "colmlm.service" not in ran.stderr, ran.stderr
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)]
    assert subprocess.run(security, capture_output=True).returncode == 0, "its exposure is above 2.5"


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://me:hunter2@db/x\n")
    settings = Settings.from_environment({"HOME": "/", "COLMLM_DATABASE_URL_FILE": str(file)})
    assert settings.database_url == "postgresql+psycopg://me:hunter2@db/x"
    for env in (
        {"COLMLM_DATABASE_URL_FILE": str(tmp_path / "none")},
        {"COLMLM_DATABASE_URL_FILE": str(file), "COLMLM_DATABASE_URL": "postgresql://x/y"},
    ):
        with pytest.raises(SettingsError) as refused:
            Settings.from_environment({"HOME": "/", **env})
        assert "hunter2" not in str(refused.value)
