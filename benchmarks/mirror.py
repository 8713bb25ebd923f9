"""VAE training with and without ``store=``: its rate, and the processor time of copying.

    python benchmarks/mirror.py     # some minutes; writes data/mirror.json

Runs without a store, with a folder and with an S3 server of this machine (moto) take turns, each a
command of its own. Checkpoints of 52 MB are written every 5 seconds, six times as often as by
default. The server's own work is not the program's: where it has no core of its own, compare the
processor time and not the rate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

BASE = ("preset=smoke", "workers.processes=0", "trainer.checkpoint_seconds=5")
COLLECT = ("rollouts.episodes=32", "rollouts.max_steps=250")
TRAIN = ("vae.batch_size=100", "vae.validation_fraction=0.05")
SERVER = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(86400)
"""


def main() -> None:
    """Measure, say each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--epochs", type=int, default=1, help="of each training")
    parser.add_argument("--out", type=Path, default=Path("data/mirror.json"))
    options = parser.parse_args()
    figures: dict[str, list[dict[str, float]]] = {"none": [], "folder": [], "S3": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ended_well(start("stage=rollouts", f"data={folder}", "run=collected", *COLLECT))
        process = server()
        try:
            for number in range(options.rounds):
                for what, rows in figures.items():
                    name = f"{what}-{number}"
                    url = {"none": "null", "folder": f"{folder}/copies/{name}"}.get(
                        what, f"s3://measured/{name}"
                    )
                    rows.append(train(folder, name, url, options.epochs))
                    say(f"mirror: {what}: {rows[-1]}")
        finally:
            process.kill()
            process.wait()
    write_json(options.out, {**provenance(), "figures": figures})


def server() -> subprocess.Popen[str]:
    """An S3 server with the bucket ``measured``; the environment leads there."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key"}
    os.environ.update(keys, AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint)
    import boto3

    boto3.client("s3").create_bucket(Bucket="measured")
    return process


def start(*words: str) -> subprocess.Popen[str]:
    """Start the program."""
    line = [sys.executable, "-m", "worldmodels", *BASE, *words]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, text=True)


def ended_well(process: subprocess.Popen[str]) -> None:
    """Wait for a program; fails as it does."""
    if process.wait() != 0:
        raise SystemExit(process.returncode)


def train(folder: Path, name: str, store: str, epochs: int) -> dict[str, float]:
    """Train in the run `name`; images per second, and seconds of wall and of processor time."""
    words = (f"data={folder}", f"run={name}", "base=collected", f"vae.epochs={epochs}")
    process, copying = start("stage=vae", *words, *TRAIN, f"store={store}"), 0.0
    while process.poll() is None:
        time.sleep(0.1)
        copying = max(copying, of_children(process.pid))
    ended_well(process)
    record: dict[str, Any] = read_json(folder / name / "vae/manifest.json")
    return {
        "images/s": record["throughput"]["images/s"],
        "stage_s": record["wall_s"],
        "copying_cpu_s": round(copying, 2),
    }


def of_children(pid: int) -> float:
    """Processor time of the program's other processes: the one that copies."""
    used = 0.0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            times = child.cpu_times()
            used += times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return used


if __name__ == "__main__":
    main()
