"""The manifests of recipes/kubernetes fit the schemas of Kubernetes, and their commands parse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from commands import holdfast_code

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "kubernetes"
MANIFESTS = sorted(RECIPES.glob("*.yaml"))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def command_of(path: Path) -> list[str]:
    """Return the command of the Job in a manifest."""
    (job,) = (found for found in documents(path) if found["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return list(container["command"])


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_is_valid(path: Path, version: str) -> None:
    found = documents(path)

    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_schema_finds_a_field_that_is_none() -> None:
    document = documents(RECIPES / "one-pod.yaml")[0]
    document["spec"]["template"]["spec"]["terminationGracePeriod"] = 1

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_command_of_a_manifest_is_one_of_holdfast(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, run, *words = command_of(path)

    assert (name, run) == ("holdfast", "run")
    assert holdfast_code("run", "--show-config", *words) == 0
    assert 'copy-to = "s3://bucket/train"' in capsys.readouterr().out


def test_hosts_of_the_job_are_the_pods_of_the_set() -> None:
    path = RECIPES / "several-pods.yaml"
    (pods,) = (found for found in documents(path) if found["kind"] == "StatefulSet")
    words = command_of(path)
    name, count = pods["metadata"]["name"], pods["spec"]["replicas"]

    hosts = [word.partition(":")[0] for word in words[words.index("--hosts") + 1].split(",")]
    assert hosts == [f"{name}-{number}" for number in range(count)]


def test_pod_that_is_not_there_yet_does_not_fail_the_job_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import holdfast\n")
    (job,) = (d for d in documents(RECIPES / "several-pods.yaml") if d["kind"] == "Job")
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    code = holdfast_code("run", "--hosts", "host-0:4", "--rsh", "false", "train.py")

    assert code == 2
    assert code not in rule["onExitCodes"]["values"]


def test_remote_shell_hands_a_command_and_its_input_to_a_pod(tmp_path: Path) -> None:
    """The kubectl of this test says how it was called, and then does as a pod would."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@"\nwhile [ "$1" != -- ]; do shift; done\nshift\n"$@"\n')
    kubectl.chmod(0o755)
    done = subprocess.run(
        [RECIPES / "into-pod", "host-1", "sh", "-c", 'cat; exit "$1"', "sh", "3"],
        input="through\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
    )

    called, *rest = done.stdout.splitlines()
    assert called.startswith("exec --quiet --stdin --container train host-1 -- sh -c cat;")
    assert (rest, done.returncode) == (["through"], 3)
