"""The processor time that ``store=`` takes while a stage runs: three minutes.

    python benchmarks/mirror.py     # writes data/mirror.json

In place of a stage, this process replaces a checkpoint of 52 MB (the paper's VAE) every 15 seconds,
twice as often as by default, and appends to a log every second. The copying process is another one,
so what it uses of a core is the most that it can take from a stage. The stores are a folder and an
S3 server of this machine (moto).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from worldmodels.config.schema import Config
from worldmodels.files.atomic import atomic_path, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.store.mirror import Mirror

CHECKPOINT, EVERY, LINES = 52_000_000, 15, 15
"""Bytes of a checkpoint, seconds between two, and lines of the log between them."""
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
    parser.add_argument("--checkpoints", type=int, default=5, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path("data/mirror.json"))
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as name, server():
        for what, url in (("folder", f"{name}/copy"), ("S3", "s3://measured/run")):
            figures[what] = measure(Path(name, what), url, options.checkpoints)
            say(f"mirror: {what}: {figures[what]}")
    record = {"checkpoint_bytes": CHECKPOINT, "every_s": EVERY, "figures": figures}
    write_json(options.out, {**provenance(), **record})


@contextlib.contextmanager
def server() -> Iterator[None]:
    """An S3 server with the bucket ``measured``, where the environment leads to."""
    line = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{int(process.stdout.readline())}",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="key",
        )
        import boto3

        boto3.client("s3").create_bucket(Bucket="measured")
        try:
            yield
        finally:
            process.kill()


def measure(root: Path, url: str, checkpoints: int) -> dict[str, float]:
    """Seconds of processor time of the copying process: at its start, meanwhile, at its end."""
    (root / "vae").mkdir(parents=True)
    config = Config(run="measured", store=url)
    content = bytearray(os.urandom(CHECKPOINT))
    with Mirror(config, root):
        # The youngest process that this one has started.
        copying = max(psutil.Process().children(), key=lambda child: child.create_time())
        start, began = processor_time(copying), time.monotonic()
        for number in range(checkpoints):
            content[:8] = number.to_bytes(8, "little")
            with atomic_path(root / "vae/checkpoint.safetensors") as temporary:
                temporary.write_bytes(content)
            for _ in range(LINES):
                with (root / "vae/metrics.csv").open("a") as file:
                    file.write("1,train/loss,0.5,1.0,0\n")
                time.sleep(EVERY / LINES)
        meanwhile, seconds = processor_time(copying) - start, time.monotonic() - began
        ending = time.monotonic()
    return {
        "start_cpu_s": round(start, 2),
        "cpu_s": round(meanwhile, 2),
        "seconds": round(seconds, 1),
        "end_s": round(time.monotonic() - ending, 2),
    }


def processor_time(process: psutil.Process) -> float:
    """What a process has used, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
