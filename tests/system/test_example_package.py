"""The package examples/extension: installed by pip, found by its entry points, trained."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import ALONE, error_line, started_anew

from worldmodels.data.episodes import EpisodeSet
from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "extension"
CHOSEN = (
    *("preset=smoke", "env=catch", "vae.encoder=small_vae", "+vae.options.channels=8"),
    *("rnn.model=mlp", "+rnn.options.steps=2", "controller.world=dream", ALONE),
    *("logger=jsonl", "+logger.options.file=log.jsonl"),
)
METRICS = {
    "vae": "validation/reconstruction",
    "rnn": "validation/nll",
    "controller": "fitness/mean",
}
PICTURES = {
    "vae": "vae-reconstructions",
    "rnn": "rnn-open_loop",
    "controller": "controller-episode",
}
FRAMES = """
import sys
from pathlib import Path
import numpy as np
from worldmodels.agents.folder import read_agent
from worldmodels.worlds.dream_env import DreamVectorEnv
from worldmodels.worlds.specs import DreamWorldSpec
folder = Path(sys.argv[1])
agent = read_agent(folder)
dream = DreamWorldSpec(folder / "rnn.safetensors", 1.0, agent.config.features).build()
low, high = np.zeros(3), np.ones(3)
env = DreamVectorEnv(dream, 2, low, high, 9, encoder=agent.encoder, decoded=True)
frames, _ = env.reset(seed=0)
assert env.observation_space.contains(frames)
print(frames.shape)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, str(PACKAGE)], check=True)
    return folder


@pytest.fixture
def site(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which programs started from here find."""
    folder = tmp_path / "site"
    shutil.copytree(installed, folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_every_part_is_used_by_every_stage(site: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = started_anew(data, "stage=all", *CHOSEN)
    assert done.returncode == 0, done.stdout + done.stderr
    run = data / "catch"
    assert EpisodeSet.open([run / "rollouts"]).frame_shape == (32, 32, 3)
    scores = read_json(run / "evaluate/scores.json")
    assert {"agent", "random policy", "agent in the dream"} <= scores.keys()
    assert "mlp" in read_json(run / "rnn/manifest.json")["summary"]["validation_nll"]
    assert (run / "evaluate/median.mp4").stat().st_size > 1000
    assert "is not finished" not in (run / "report/index.html").read_text()
    for stage, metric in METRICS.items():
        lines = [json.loads(line) for line in (run / stage / "log.jsonl").read_text().splitlines()]
        assert any(metric in line for line in lines), lines
        assert [*(run / stage).glob(f"{PICTURES[stage]}-*.png")]
    shown = [sys.executable, "-c", FRAMES, str(run / "controller/agent")]
    assert subprocess.check_output(shown, text=True).strip() == "(2, 32, 32, 3)"
    other = ("stage=evaluate", f"model={run / 'controller/agent'}", "run=other", "env.size=64")
    line = error_line(started_anew(data, *CHOSEN, *other))
    assert "env.size=64; give env.crop_rows=null env.size=32" in line
    line = error_line(started_anew(data, *CHOSEN, "stage=vae", "overwrite=true", "env.size=64"))
    assert "env.size=64: takes frames of 64 pixels, those of " in line
    assert "are 32x32; collect them again" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vae.encoder=conv_vae", "~vae.options.channels"), "not env.size=32; choose env.size=64"),
        (("env.size=36",), "vae.encoder=small_vae: takes frames of a multiple of 8 pixels, not"),
        (
            ("+rnn.options.depth=3",),
            "rnn.options.depth: no such option; StackedMLP has",
        ),
        (("+logger.options.port=1",), "logger.options.port: no such option; JSONLines has file"),
    ],
)
def test_what_a_part_does_not_take_is_one_line(
    site: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in error_line(started_anew(tmp_path, "stage=all", *CHOSEN, *words))


def test_a_package_that_cannot_be_imported_is_one_line(site: Path, tmp_path: Path) -> None:
    (site / "example_extension/dynamics.py").write_text("import no_such_module\n")
    line = error_line(started_anew(tmp_path, "stage=rnn", "preset=smoke", "rnn.model=mlp"))
    assert "dynamics model mlp: example_extension.dynamics:StackedMLP cannot be imported" in line
    assert "no_such_module" in line
