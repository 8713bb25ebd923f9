"""cloud/: the scripts against stand-ins, and what the files agree on with the program.

That other programs take the files is tested by tests/system/test_cloud_formats.py.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from shell import ROOT, Commands, lint

from worldmodels.config.choices import Stage
from worldmodels.errors import EXIT_STOPPED

CLOUD = ROOT / "cloud"
JOBS = ("rollouts", "models", "controller", "all")
SUBMIT = str(CLOUD / "kubernetes/submit.sh")


def test_scripts_pass_their_linter() -> None:
    lint("shellcheck", *(str(path.relative_to(ROOT)) for path in CLOUD.rglob("*.sh")))


# What the files say


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a SkyPilot file, without the pipeline's header."""
    documents = yaml.safe_load_all((CLOUD / "skypilot" / name).read_text())
    return [document for document in documents if "run" in document]


def containers(job: str) -> list[dict[str, Any]]:
    """The containers of a Job in the order in which they run."""
    spec = yaml.safe_load((CLOUD / "kubernetes" / f"{job}.yaml").read_text())["spec"]
    return containers_of(spec["template"])


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The containers of a pod in the order in which they run."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_stopped_is_run_again_and_nothing_else_is() -> None:
    for task in [*tasks("pipeline.yaml"), *tasks("spot.yaml")]:
        assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [EXIT_STOPPED]
    for name in JOBS:
        spec = yaml.safe_load((CLOUD / "kubernetes" / f"{name}.yaml").read_text())["spec"]
        again, moved, failed = spec["podFailurePolicy"]["rules"]
        assert again["action"] == moved["action"] == "Ignore"
        assert again["onExitCodes"] == {"operator": "In", "values": [EXIT_STOPPED]}
        assert failed["action"] == "FailJob"
        assert failed["onExitCodes"] == {"operator": "NotIn", "values": [EXIT_STOPPED]}
        assert spec["backoffLimit"] == 0
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
    ray = yaml.safe_load((CLOUD / "kubernetes/ray.yaml").read_text())["spec"]
    assert ray["backoffLimit"] == 0
    assert ray["entrypoint"].startswith("/workspace/docker/entrypoint.sh ")
    assert int(yaml.safe_load(ray["runtimeEnvYAML"])["env_vars"]["WORLDMODELS_RESTARTS"]) > 0


CHAIN = [stage.value for stage in Stage if stage.value not in ("bootstrap", "inspect")][:6]


def test_the_parts_of_a_run_are_its_stages_in_order() -> None:
    assert CHAIN == ["rollouts", "vae", "rnn", "controller", "evaluate", "report"]
    runs = [task["run"].split()[2:] for task in tasks("pipeline.yaml")]
    assert [stage for stages in runs for stage in stages] == CHAIN
    words = [container["args"][0] for job in JOBS[:3] for container in containers(job)]
    assert words == [f"stage={stage}" for stage in CHAIN]


def test_gpus_are_asked_for_where_models_are_trained_and_only_there() -> None:
    kinds = {task["name"]: "accelerators" in task["resources"] for task in tasks("pipeline.yaml")}
    assert kinds == {"rollouts": False, "models": True, "controller": False, "results": False}
    for job in JOBS:
        for container in containers(job):
            limits = container["resources"]["limits"]
            assert limits.get("nvidia.com/gpu") == (1 if job in ("models", "all") else None)


def test_the_program_counts_the_cores_that_its_container_asks_for() -> None:
    ray = yaml.safe_load((CLOUD / "kubernetes/ray.yaml").read_text())["spec"]["rayClusterSpec"]
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    found = [container for job in JOBS for container in containers(job)]
    found += [container for group in groups for container in containers_of(group["template"])]
    assert len(found) == 9
    for container in found:  # without a limit, the cores of the node are counted
        resources = container["resources"]
        assert resources["limits"].get("cpu") == resources["requests"]["cpu"]


def test_machines_end_with_the_run() -> None:
    for task in [*tasks("pipeline.yaml"), *tasks("spot.yaml")]:
        assert task["resources"]["use_spot"]
        assert task["resources"]["autostop"]["down"]
    ray = yaml.safe_load((CLOUD / "kubernetes/ray.yaml").read_text())["spec"]
    assert ray["shutdownAfterJobFinishes"] is True


# cloud/kubernetes/submit.sh


@pytest.fixture
def kubectl(commands: Commands) -> Commands:
    """A cluster in which each Job ends at the second look, as the file `ends` says."""
    commands.add(
        "kubectl",
        """case $1 in
    apply) cat > "$FOLDER/$(ls "$FOLDER"/*.yaml 2>/dev/null | wc -l).yaml" ;;
    get)
        [[ -e $FOLDER/seen-$3 ]] && cat "$FOLDER/ends"
        touch "$FOLDER/seen-$3" ;;
esac""",
    )
    folder = Path(commands.env["FOLDER"])
    (folder / "ends").write_text("SuccessCriteriaMet Complete")
    commands.env |= {"IMAGE": "registry/wm:1", "STORE": "s3://bucket/deep", "POLL_SECONDS": "0"}
    return commands


def submitted(kubectl: Commands) -> list[dict[str, Any]]:
    return [
        yaml.safe_load(p.read_text()) for p in sorted(Path(kubectl.env["FOLDER"]).glob("*.yaml"))
    ]


def test_jobs_follow_one_another_with_the_users_image_and_overrides(kubectl: Commands) -> None:
    done = kubectl.run(SUBMIT, "My_run", "preset=paper", "vae.latent_size=64")
    assert done.returncode == 0, done.stderr
    names = [job["metadata"]["name"] for job in submitted(kubectl)]
    assert names == ["my-run-rollouts", "my-run-models", "my-run-controller"]
    calls = [call.split()[0] for call in kubectl.calls("kubectl")]
    assert calls == ["apply", "get", "get", "get"] * 3
    for job in submitted(kubectl):
        pod = job["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["image"] == "registry/wm:1"
            assert container["args"][1:] == [
                "run=My_run",
                "preset=paper",
                "vae.latent_size=64",
                "store=s3://bucket/deep",
                "resume=s3://bucket/deep",
            ]


def test_a_job_that_fails_ends_the_submission_and_is_named(kubectl: Commands) -> None:
    (Path(kubectl.env["FOLDER"]) / "ends").write_text("FailureTarget Failed")
    done = kubectl.run(SUBMIT, "deep")
    assert done.returncode == 1
    assert "kubectl delete job deep-rollouts" in done.stderr
    assert len(submitted(kubectl)) == 1


def test_a_ray_job_takes_the_overrides_in_its_command(kubectl: Commands) -> None:
    (Path(kubectl.env["FOLDER"]) / "ends").write_text("Complete")
    kubectl.env["JOBS"] = "ray"
    done = kubectl.run(SUBMIT, "deep", "preset=smoke")
    assert done.returncode == 0, done.stderr
    (job,) = submitted(kubectl)
    _, *words = job["spec"]["entrypoint"].split()
    assert words[:3] == ["stage=all", "workers=ray", "workers.address=auto"]
    assert {"run=deep", "preset=smoke", "resume=s3://bucket/deep"} <= {*words}
    assert kubectl.calls("kubectl")[-1].startswith("get rayjob deep-ray ")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("env.kwargs={a: b}", "characters that need quotes"),
        ("name=$(date)", "characters that need quotes"),
        ("overwrite=true", "deletes the progress"),
        ("overwrite=True", "deletes the progress"),
        ("++overwrite=1", "deletes the progress"),
    ],
)
def test_overrides_that_cannot_be_submitted_are_refused(
    kubectl: Commands, word: str, reason: str
) -> None:
    done = kubectl.run(SUBMIT, "deep", word)
    assert done.returncode == 2
    assert word in done.stderr
    assert reason in done.stderr
    assert kubectl.calls("kubectl") == []


@pytest.mark.parametrize("missing", ["IMAGE", "STORE"])
def test_without_an_image_or_a_store_nothing_is_submitted(kubectl: Commands, missing: str) -> None:
    del kubectl.env[missing]
    done = kubectl.run(SUBMIT, "deep")
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")
    assert kubectl.calls("kubectl") == []


# cloud/skypilot


@pytest.fixture
def machine(commands: Commands) -> Commands:
    """A rented machine: the scripts, and stand-ins for Python and uv."""
    folder = Path(commands.env["FOLDER"])
    shutil.copytree(CLOUD, folder / "cloud")
    commands.add("python", '[[ $(grep -c "^python" "$CALLS") != "$FAILS" ]] || exit 75')
    commands.add("uv", "")
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(commands.bin / "python")
    commands.env |= {"STORE": "gs://bucket/deep", "RUN": "deep", "FAILS": "0"}
    return commands


def run_section(machine: Commands, task: dict[str, Any], section: str) -> tuple[int, list[str]]:
    """Run a task's setup or run section as SkyPilot does: by bash, in the checkout."""
    folder = Path(machine.env["FOLDER"])
    done = machine.run("bash", "-c", task[section], cwd=folder)
    assert done.returncode in (0, 75), done.stderr
    return done.returncode, machine.calls("python" if section == "run" else "uv")


def test_a_task_runs_its_stages_from_the_store_and_into_it(machine: Commands) -> None:
    (models,) = (task for task in tasks("pipeline.yaml") if task["name"] == "models")
    machine.env["OVERRIDES"] = "preset=paper vae.latent_size=64"
    rest = "run=deep preset=paper vae.latent_size=64 store=gs://bucket/deep resume=gs://bucket/deep"
    assert run_section(machine, models, "run") == (
        0,
        [f"-m worldmodels stage=vae {rest}", f"-m worldmodels stage=rnn {rest}"],
    )


def test_a_stage_that_is_stopped_ends_the_task_with_its_code(machine: Commands) -> None:
    (models,) = (task for task in tasks("pipeline.yaml") if task["name"] == "models")
    machine.env["FAILS"] = "1"
    code, calls = run_section(machine, models, "run")
    assert (code, len(calls)) == (75, 1)


@pytest.mark.parametrize("word", ["overwrite=true", "overwrite=True", "++overwrite=1"])
def test_a_task_never_deletes_the_progress_of_the_machine_before_it(
    machine: Commands, word: str
) -> None:
    machine.env["OVERRIDES"] = f"preset=paper {word}"
    done = machine.run(
        "bash", "-c", "cloud/skypilot/stages.sh vae", cwd=Path(machine.env["FOLDER"])
    )
    assert (done.returncode, machine.calls("python")) == (2, [])
    assert word in done.stderr


@pytest.mark.parametrize(
    ("store", "extra"),
    [("s3://bucket/deep", {"s3"}), ("gs://b/deep", {"gcs"}), ("/nfs/deep", set())],
)
def test_setup_installs_the_locked_versions_and_what_the_task_needs(
    machine: Commands, store: str, extra: set[str]
) -> None:
    machine.env["STORE"] = store
    for task in [*tasks("pipeline.yaml"), *tasks("spot.yaml")]:
        _, calls = run_section(machine, task, "setup")
        assert "--constraint constraints.txt --editable" in calls[-1]
        (extras,) = re.findall(r"--editable \.\[([\w,]*)\]$", calls[-1])
        wanted = extra | ({"cuda"} if "accelerators" in task["resources"] else set())
        assert {*extras.split(",")} - {""} == wanted


def test_the_clusters_ray_is_the_one_of_the_image() -> None:
    pins = re.findall(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    ray = yaml.safe_load((CLOUD / "kubernetes/ray.yaml").read_text())["spec"]["rayClusterSpec"]
    assert [ray["rayVersion"]] == pins
