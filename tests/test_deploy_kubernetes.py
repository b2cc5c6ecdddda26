"""The manifests in deploy/kubernetes fit Kubernetes' schemas and each other. Nothing of them is run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from colmlm.api.settings import ServerSettings
from colmlm.kb.jobs.worker import GRACE_SECONDS
from tests.places import ROOT
from tests.test_docs import fault_of, settings_read

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")  # the oldest that is promised, and the newest whose schemas there are
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def kustomization() -> Manifest:
    loaded: Manifest = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def manifests(kustomization: Manifest) -> list[Manifest]:
    """What the kustomization names, as it is in the files."""
    texts = [(FOLDER / name).read_text() for name in kustomization["resources"]]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pods that the manifests make, by the name of what makes them."""
    return {
        m["metadata"]["name"]: m["spec"]["template"] for m in manifests if m["kind"] in ("Deployment", "Job")
    }


def containers(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    for pod in pods(manifests).values():
        yield from ((pod["spec"], container) for container in pod["spec"]["containers"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_fit_the_schemas(manifests: list[Manifest], version: str) -> None:
    assert len(manifests) > 10
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
    manifests[0]["spec"] = {"no such field": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests[0], version, strict=True)
    del manifests[0]["spec"]


def rendered(folder: Path) -> list[Manifest]:
    """What kubectl makes of a kustomization, and would send to a cluster."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    ran = subprocess.run(["kubectl", "kustomize", str(folder)], text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


def test_kubectl_renders_what_fits_the_schemas() -> None:
    manifests = rendered(FOLDER)
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "colmlm"
    assert set(pods(manifests)) == {"colmlm-api", "colmlm-worker", "colmlm-migrations"}
    (settings,) = of_kind(manifests, "ConfigMap")
    for _, container in containers(manifests):
        assert container["envFrom"][0] == {"configMapRef": {"name": settings}}


def test_the_documented_overlay_changes_what_it_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "production" / "kubernetes.md").read_text()
    (overlay,) = re.findall(r"```yaml\n(# kustomization.yaml\n.*?)```", text, re.DOTALL)
    base = os.path.relpath(FOLDER, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("path/to/deploy/kubernetes", base))
    manifests = rendered(tmp_path)
    (settings,) = of_kind(manifests, "ConfigMap").values()
    assert settings["data"]["COLMLM_SHARED_SNAPSHOTS"] == "s3://ours/colmlm"
    assert settings["data"]["COLMLM_DRAIN_SECONDS"] == "30"
    images = {container["image"] for _, container in containers(manifests)}
    assert images == {"registry.example.org/colmlm:0.1.0"}


def test_the_settings_exist_and_hold_no_secret(kustomization: Manifest) -> None:
    (settings,) = kustomization["configMapGenerator"]
    named = dict(literal.split("=", 1) for literal in settings["literals"])
    assert set(named) <= settings_read() and "COLMLM_DATABASE_URL" not in named
    drain = float(named["COLMLM_DRAIN_SECONDS"])
    ServerSettings.from_environment({name: value for name, value in named.items() if "FILE" not in name})
    assert drain < 90


def test_containers_run_commands_that_exist(manifests: list[Manifest]) -> None:
    commands = [" ".join(["colmlm", *container["args"]]) for _, container in containers(manifests)]
    assert len(commands) == 3 and [fault for line in commands if (fault := fault_of(line))] == []
    assert all(container["image"] == "colmlm" for _, container in containers(manifests))


def test_no_container_has_rights_that_it_does_not_need(manifests: list[Manifest]) -> None:
    for pod, container in containers(manifests):
        user, rights = pod["securityContext"], container["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] == user["runAsGroup"] == user["fsGroup"] == 10001
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert not pod["automountServiceAccountToken"] and not pod["enableServiceLinks"]
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]


def test_secrets_are_named_and_not_here(manifests: list[Manifest]) -> None:
    assert of_kind(manifests, "Secret") == {}
    for pod, container in containers(manifests):
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert "colmlm-database" in secrets and "env" not in container


def test_pods_are_selected_by_what_is_for_them(manifests: list[Manifest], kustomization: Manifest) -> None:
    (common,) = kustomization["labels"]
    assert common["includeTemplates"] is True
    labels = [pod["metadata"]["labels"] | common["pairs"] for pod in pods(manifests).values()]

    def selected(wanted: Manifest) -> int:
        return sum(wanted.items() <= there.items() for there in labels)

    for name, policy in of_kind(manifests, "NetworkPolicy").items():
        assert selected(policy["spec"]["podSelector"]["matchLabels"]) == (3 if name == "colmlm" else 1)
    for budget in of_kind(manifests, "PodDisruptionBudget").values():
        assert selected(budget["spec"]["selector"]["matchLabels"]) == 1
    assert selected(of_kind(manifests, "Service")["colmlm"]["spec"]["selector"]) == 1
    for deployment in of_kind(manifests, "Deployment").values():
        assert selected(deployment["spec"]["selector"]["matchLabels"]) == 1


def test_an_eviction_leaves_enough_pods_and_none_is_cut_off(manifests: list[Manifest]) -> None:
    deployments, budgets = of_kind(manifests, "Deployment"), of_kind(manifests, "PodDisruptionBudget")
    assert {budget["spec"]["unhealthyPodEvictionPolicy"] for budget in budgets.values()} == {"AlwaysAllow"}
    api, worker = deployments["colmlm-api"]["spec"], deployments["colmlm-worker"]["spec"]
    assert api["replicas"] > budgets["colmlm-api"]["spec"]["minAvailable"] >= 2
    assert worker["replicas"] > budgets["colmlm-worker"]["spec"]["maxUnavailable"]
    assert api["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    seconds = api["template"]["spec"]["terminationGracePeriodSeconds"]
    assert seconds > 2 * ServerSettings().drain_seconds
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] > GRACE_SECONDS


def test_probes_ask_what_the_server_answers(manifests: list[Manifest]) -> None:
    (server,) = (c for _, c in containers(manifests) if c["name"] == "api")
    assert {p["name"]: p["containerPort"] for p in server["ports"]} == {"http": 8484, "metrics": 9484}
    asked = {probe: server[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert {probe: get["path"] for probe, get in asked.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert all(get["httpHeaders"] == [{"name": "Host", "value": "localhost"}] for get in asked.values())
