"""One small run in every place that docs/elsewhere.md names: equal artifacts, or exit code 1.

    make chains                          # in each place that this machine has
    make chains places="ray kills"       # some of them, after the run of local workers
    make chains flags="--image-arg DEVICE=cpu --image-arg TORCH_INDEX=... --bind PATH"

`local` is the run that the others are compared with, stage by stage: the fingerprint of what the
stage made, and the SHA-256 of the files that later stages read. The report has the times of its run
and is not compared. What a machine lacks is named, and that place is left out. The file keeps the
places of an earlier command if local workers made the same artifacts then.

- ray: a cluster of two nodes on this machine, one of which is killed while episodes are collected
- slurm: daemons of Slurm's own on the loopback interface; a job for each stage (root)
- image: the steps of docker/Dockerfile in a folder (benchmarks/image.py), without a network (root)
- skypilot: setup and run of each task of cloud/skypilot/pipeline.yaml, in a checkout below a
  temporary home; each task begins without data, from the store
- kills: SIGKILL once in each stage, resumed each time in an empty folder from the store alone

Image and SkyPilot download packages: minutes, and gigabytes of disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from command import ALONE, BRIEFLY, start
from image import DOCKERFILE, RootFolder, bootstrap, missing
from lost_machines import STAGES, killed_in_each_stage, made, manifest
from slurm_cluster import cluster as slurm_cluster
from waiting import wait_for

from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.system.environment import variables

ROOT = Path(__file__).resolve().parents[1]
RUN = "smoke"
WORDS = (
    *("preset=smoke", f"run={RUN}", "trainer.checkpoint_seconds=0", *BRIEFLY),
    # Collection takes some seconds, in which a node can be lost.
    *("env.num_envs=2", "rollouts.episodes=64", "vae.batch_size=256", "vae.epochs=2"),
    *("evaluate.episodes=4", "controller.eval_interval=1"),
)
MEMORY = 100 * 2**20
"""Bytes of the object store of a node of Ray."""


class Absent(Exception):
    """What a place needs is not here."""


def program(data: Path, *words: str) -> Path:
    """Run the whole chain; the folder of the run."""
    with start(data, "stage=all", *WORDS, *words) as process:
        return finished(process, data)


def finished(process: subprocess.Popen[str], data: Path) -> Path:
    """Wait for a command; the folder of its run."""
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    return data / RUN


def local(folder: Path, options: argparse.Namespace) -> Path:
    """With worker processes of this machine."""
    return program(folder, "workers.processes=2")


def ray(folder: Path, options: argparse.Namespace) -> Path:
    """On two nodes of Ray, one of which is killed during collection."""
    if find_spec("ray") is None:
        raise Absent("the package ray")
    from ray import shutdown
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    with variables(RAY_AUTH_MODE="disabled", RAY_ADDRESS=""), ExitStack() as ending:
        cluster = Cluster(initialize_head=True, head_node_args=node)
        ending.callback(cluster.shutdown)
        ending.callback(shutdown)
        lost = cluster.add_node(**node)
        elsewhere = ("workers=ray", f"workers.address={cluster.address}")
        with start(folder, "stage=all", *WORDS, *elsewhere) as process:
            shards = folder / RUN / "rollouts"
            wait_for(lambda: [*shards.glob("shard-*.h5")] or process.poll() is not None)
            (raylet,) = lost.all_processes["raylet"]
            there = psutil.Process(raylet.process.pid)
            for member in (there, *there.children(recursive=True)):
                member.kill()
            assert manifest(folder / RUN, "rollouts")["state"] == "running", "it was lost too late"
            cluster.remove_node(lost, allow_graceful=False)
            return finished(process, folder)


def slurm(folder: Path, options: argparse.Namespace) -> Path:
    """As jobs of Slurm."""
    # The name of a Unix socket is short, so not in `folder`.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        try:
            with slurm_cluster(Path(name)) as daemons:
                jobs = daemons.submit(RUN, *WORDS, ALONE)
                for job in jobs.values():
                    daemons.wait(job, "COMPLETED")
                shutil.copytree(daemons.home / "data" / RUN, folder / RUN)
        except pytest.skip.Exception as reason:
            raise Absent(str(reason)) from None
    return folder / RUN


def image(folder: Path, options: argparse.Namespace) -> Path:
    """In the root folder of the image."""
    if (lacking := missing()) is not None:
        raise Absent(lacking)
    arguments = dict(word.split("=", 1) for word in options.image_arg)
    built = RootFolder(folder, arguments, options.bind)
    bootstrap(folder)
    built.build(DOCKERFILE.read_text())
    built.env["OMP_NUM_THREADS"] = "1"
    subprocess.run(built.program(("stage=all", *WORDS)), check=True, stdout=subprocess.DEVNULL)
    return built.root / "workspace/data" / RUN


def skypilot(folder: Path, options: argparse.Namespace) -> Path:
    """By the setup and run commands of each task, on a machine without data."""
    if shutil.which("uv", path=_path()) is None:
        raise Absent("uv")
    checkout, store = folder / "sky_workdir", folder / "store"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    env = {name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ENV")}
    env |= {"HOME": str(folder), "PATH": _path(), "STORE": str(store), "RUN": RUN}
    env["OVERRIDES"] = " ".join(WORDS)
    for task in yaml.safe_load_all((checkout / "cloud/skypilot/pipeline.yaml").read_text()):
        if "run" not in task:
            continue
        shutil.rmtree(checkout / "data", ignore_errors=True)
        for section in ("setup", "run"):
            done = subprocess.run(
                ["bash", "-c", task[section]],
                cwd=checkout,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (task["name"], section, done.stdout, done.stderr)
    return checkout / "data" / RUN


def _path() -> str:
    """The search path with the programs that are installed beside this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def kills(folder: Path, options: argparse.Namespace) -> Path:
    """With a kill in each stage."""
    copying = ("mirror.interval=0.05", "mirror.cpu_share=1")
    return killed_in_each_stage(folder, *WORDS, *copying, ALONE)


PLACES: dict[str, tuple[Callable[[Path, argparse.Namespace], Path], str]] = {
    "local": (local, "two worker processes of this machine"),
    "ray": (ray, "a Ray cluster of two nodes, one of them killed during collection"),
    "slurm": (slurm, "Slurm, a job for each stage"),
    "image": (image, "the image's root folder, as its user and without a network"),
    "skypilot": (
        skypilot,
        "the commands of the SkyPilot tasks, each task without data, from the store",
    ),
    "kills": (
        kills,
        "SIGKILL once in each stage, each time resumed in an empty folder from the store alone",
    ),
}


def results(
    options: argparse.Namespace, base: Path, wanted: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Run the chain in each place, and compare what it made with what local workers made.

    Args:
        options: of the command line.
        base: for the folders of the places.
        wanted: is filled with what local workers made.
    """
    for name in dict.fromkeys(["local", *(options.places or PLACES)]):
        folder, began = base / name, time.monotonic()
        folder.mkdir()
        place, what = PLACES[name]
        row = {"place": name, "what": what}
        try:
            found = made(place(folder, options))
        except Absent as lacking:
            yield row | {"lacking": str(lacking)}
            continue
        except (AssertionError, subprocess.CalledProcessError) as error:
            if not wanted:
                raise
            yield row | {"failed": " ".join(str(error).split())[-2000:]}
            continue
        wanted |= {} if wanted else found
        unlike = [stage for stage in STAGES if found[stage] != wanted[stage]]
        yield row | {"seconds": round(time.monotonic() - began, 1), "unlike": unlike}


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result, with places of an earlier one for which local workers made the same."""
    before = read_json(path) if path.exists() else {}
    same = all(before.get(key) == result[key] for key in ("words", "artifacts"))
    rows = [*(before["places"] if same else []), *result["places"]]
    by_place = {row["place"]: row for row in rows}
    places = [by_place[name] for name in PLACES if name in by_place]
    write_json(path, {**provenance(), **result, "places": places})


def main() -> int:
    """Run and compare, write the result; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", help=f"among {', '.join(PLACES)}; all by default")
    parser.add_argument("--image-arg", action="append", default=[], help="see benchmarks/image.py")
    parser.add_argument("--bind", action="append", default=[], type=Path, help="the same")
    parser.add_argument("--out", type=Path, default=Path("data/chains.json"))
    options = parser.parse_args()
    if unknown := set(options.places) - PLACES.keys():
        parser.error(f"no such place: {', '.join(unknown)}")
    # With more, sums of losses are rounded in an order that depends on the number of cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    rows: list[dict[str, Any]] = []
    artifacts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="chains-") as name:
        for row in results(options, Path(name), artifacts):
            say(f"chains: {row}")
            rows.append(row)
            write(options.out, {"words": [*WORDS], "artifacts": artifacts, "places": rows})
    return int(any(row.get("failed") or row.get("unlike") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
