"""cloud/ and docker/compose.yaml, read by the programs that they are for, offline.

SkyPilot, kubernetes-validate and compose-spec are installed into an environment of their own, at
the versions that are stated here: their dependencies are not those of this package. No package has
KubeRay's schema: the fields of a RayJob are listed here, its pods are checked by Kubernetes' own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import BRIEFLY, FEW_FRAMES, environment
from shell import Commands, linter

from worldmodels.errors import EXIT_STOPPED

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
CLOUD = ROOT / "cloud"
SKYPILOT = sorted((CLOUD / "skypilot").glob("*.yaml"))
KUBERNETES = sorted((CLOUD / "kubernetes").glob("*.yaml"))
PACKAGES = ("skypilot==0.14.1", "kubernetes-validate==1.37.0", "compose-spec==0.2.1")
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: the oldest with pod failure policies that are stable, and the newest known."""

Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Runs a program of Python in an environment that has the packages."""
    folder = tmp_path_factory.mktemp("tools")
    uv = linter("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    python = folder / "env/bin/python"
    line: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python, *PACKAGES]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{', '.join(PACKAGES)} cannot be installed: {done.stderr.strip()[-300:]}")

    def run(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        kept = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        env = kept | {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        line = [python, "-c", code, *words]
        return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    return run


# SkyPilot: its parser and schema. Names of accelerators are not checked: SkyPilot would fetch its
# catalogue of what providers offer.

PARSE = """
import json, sys
from sky.jobs import recovery_strategy
from sky.utils import dag_utils, registry

def parsed(path, envs):
    dag = dag_utils.load_chain_dag_from_yaml(path, [tuple(env) for env in envs])
    tasks = []
    for task in dag.tasks:
        one, *_ = task.resources
        task.validate_run()
        registry.JOBS_RECOVERY_STRATEGY_REGISTRY.from_str(one.job_recovery["strategy"])
        tasks.append({
            "envs": task.envs, "gpu": bool(one.accelerators), "setup": task.setup,
            "spot": one.use_spot, "down": one.autostop_config.down,
            "again": one.job_recovery["recover_on_exit_codes"],
        })
    return {"name": dag.name, "chain": dag.is_chain(), "tasks": tasks}

found = []
for path, envs in json.loads(sys.argv[1]):
    try:
        found.append(parsed(path, envs))
    except Exception as error:
        found.append({"error": str(error)})
print(json.dumps(found))
"""


def test_skypilot_takes_the_tasks_and_names_what_is_wrong(check: Check, tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(SKYPILOT[0].read_text().replace("use_spot", "use_spots"))
    envs = {"STORE": "s3://bucket/deep", "RUN": "wide"}
    cases = [
        *((str(path), [*envs.items()]) for path in [*SKYPILOT, mistyped]),
        (str(SKYPILOT[0]), []),
    ]
    done = check(PARSE, json.dumps(cases))
    assert done.returncode == 0, done.stderr
    *dags, of_mistyped, without_store = json.loads(done.stdout.splitlines()[-1])
    assert "use_spots" in of_mistyped["error"]
    assert "STORE" in without_store["error"]
    for dag in dags:
        assert "error" not in dag, dag
        assert dag["chain"]
        assert dag["name"] == "worldmodels"
        for task in dag["tasks"]:
            assert task["spot"]
            assert task["down"]
            assert task["again"] == [EXIT_STOPPED]
            assert task["envs"].items() >= envs.items()
            assert task["gpu"] == ("cuda" in task["setup"])


# Kubernetes

VALIDATE = """
import json, sys
import kubernetes_validate
for document in json.loads(sys.argv[1]):
    kubernetes_validate.validate(document, sys.argv[2], strict=True)
"""

RAY_JOB = {
    "entrypoint": str,
    "runtimeEnvYAML": str,
    "backoffLimit": int,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "rayClusterSpec": {
        "rayVersion": str,
        "authOptions": {"mode": str},
        "headGroupSpec": {"rayStartParams": dict, "template": dict},
        "workerGroupSpecs": [
            {
                "groupName": str,
                "replicas": int,
                "minReplicas": int,
                "maxReplicas": int,
                "rayStartParams": dict,
                "template": dict,
            }
        ],
    },
}
"""The fields that ray.yaml uses, of those in KubeRay's reference of ray.io/v1, with their types."""


def differences(value: Any, fields: Any, name: str = "spec") -> list[str]:
    """What in `value` is not among `fields`, or has another type."""
    if isinstance(fields, type):
        return [] if isinstance(value, fields) else [f"{name}: {value!r}"]
    if isinstance(fields, list):
        found = [differences(one, fields[0], f"{name}[{i}]") for i, one in enumerate(value)]
        return [line for lines in found for line in lines]
    unknown = [f"{name}.{key}" for key in value.keys() - fields.keys()]
    known = [
        differences(value[key], fields[key], f"{name}.{key}") for key in value if key in fields
    ]
    return unknown + [line for lines in known for line in lines]


def submitted(path: Path, tmp_path: Path) -> dict[str, Any]:
    """A manifest as submit.sh gives it to kubectl."""
    commands = Commands(tmp_path)
    commands.add(
        "kubectl", 'if [[ $1 == apply ]]; then cat > "$FOLDER/sent"; else echo Complete; fi'
    )
    commands.env |= {"IMAGE": "registry/wm:1", "STORE": "s3://bucket/deep", "JOBS": path.stem}
    done = commands.run(str(CLOUD / "kubernetes/submit.sh"), "deep", "preset=paper")
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load((tmp_path / "sent").read_text())
    assert isinstance(document, dict)
    return document


def documents(path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """What of a manifest Kubernetes itself has a schema for."""
    sent = submitted(path, tmp_path)
    if sent["kind"] == "Job":
        return [sent]
    assert (sent["apiVersion"], sent["kind"]) == ("ray.io/v1", "RayJob")
    assert differences(sent["spec"], RAY_JOB) == []
    cluster = sent["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "pod"},
            "template": template,
        }
        for template in (group["template"] for group in groups)
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_takes_the_manifests(
    check: Check, tmp_path: Path, path: Path, version: str
) -> None:
    done = check(VALIDATE, json.dumps(documents(path, tmp_path)), version)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["rollouts", "ray"])
def test_kubernetes_would_name_a_mistyped_field(check: Check, tmp_path: Path, name: str) -> None:
    (document, *_) = documents(CLOUD / "kubernetes" / f"{name}.yaml", tmp_path)
    pod = (document.get("spec") or document)["template"]["spec"]
    pod["containers"][0]["volumeMount"] = []
    done = check(VALIDATE, json.dumps([document]), VERSIONS[0])
    assert done.returncode != 0
    assert "volumeMount" in done.stderr


# Docker Compose

COMPOSE = """
import json, sys
from compose_spec import PyCompose
for text in json.loads(sys.argv[1]):
    compose = PyCompose.from_yaml(text)
    compose.validate()
    print(*sorted(compose.service_names()))
"""


def interpolated(text: str) -> str:
    """The text of a Compose file with its defaults: `${NAME:-default}`, which may be nested."""
    while "${" in text:
        text = re.sub(r"\$\{\w+(?::-([^{}]*))?\}", r"\1", text)
    return text


def test_the_format_of_docker_compose_allows_the_files(check: Check) -> None:
    paths = sorted((ROOT / "docker").glob("compose*.yaml"))
    texts = [interpolated(path.read_text()) for path in paths]
    done = check(COMPOSE, json.dumps(texts))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["desktop", "server"] * 2
    wrong = [text.replace("stop_grace_period: 2m", "stop_grace_period: soon") for text in texts]
    assert check(COMPOSE, json.dumps(wrong)).returncode != 0


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="Docker's plugin compose is not installed",
)
def test_compose_itself_takes_the_services() -> None:
    files = [f"--file={path}" for path in sorted((ROOT / "docker").glob("compose*.yaml"))]
    line = ["docker", "compose", *files[::-1], "config", "--format", "json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert {"server", "desktop"} == services.keys()


# The tasks' own commands


def test_a_pipelines_commands_run_by_hand_make_a_run(tmp_path: Path) -> None:
    """Each task in a checkout of its own, as on a machine of its own, from the store alone."""
    store = tmp_path / "store"
    env = environment() | {
        "STORE": f"file://{store}",
        "RUN": "deep",
        "OVERRIDES": " ".join(("preset=smoke", "workers.processes=0", *BRIEFLY, *FEW_FRAMES)),
    }
    tasks = yaml.safe_load_all((CLOUD / "skypilot/pipeline.yaml").read_text())
    for task in (task for task in tasks if "run" in task):
        machine = tmp_path / task["name"]
        (machine / ".venv/bin").mkdir(parents=True)
        python = machine / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        for name in ("worldmodels", "conf", "pretrained", "cloud"):
            (machine / name).symlink_to(ROOT / name)
        done = subprocess.run(
            ["bash", "-c", task["run"]],
            cwd=machine,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (store / "report/index.html").is_file()
