"""The program as a user runs it, and the configuration that its words make."""

import os
import subprocess
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from worldmodels import config as schema

CONF = Path(__file__).resolve().parent.parent / "conf"

ALONE = "workers.processes=0"
"""Where workers are not the question: each takes seconds to start."""


def composed(*overrides: str) -> schema.Config:
    """The configuration of a command line."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_object(compose("config", overrides=list(overrides)))
    assert isinstance(config, schema.Config)
    return config


def environment() -> dict[str, str]:
    """Without a display, and without settings of the machine that runs the tests."""
    dropped = {"DISPLAY", "PYTEST_CURRENT_TEST"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start ``python -m worldmodels`` with its data below `folder`."""
    line = [sys.executable, "-m", "worldmodels", *overrides, f"data={folder}"]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    with start(folder, *overrides) as process:
        try:
            output, errors = process.communicate(timeout=280)
        except subprocess.TimeoutExpired:
            process.kill()  # or it would go on beside the tests that follow
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure; fails itself if there are more, or a traceback."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
