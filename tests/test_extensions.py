"""What other packages add: trackers and configuration groups, found by their entry points."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from command import composed, environment, error_line, started_anew

from worldmodels import extras, trackers
from worldmodels.agents.model_files import load_encoder, save_encoder
from worldmodels.agents.registry import build_encoder
from worldmodels.config.execution import LoggerConfig
from worldmodels.errors import ConfigError
from worldmodels.runs.artifacts import Run
from worldmodels.runs.tracking import MetricsLog, read_metrics
from worldmodels.stages.context import Context

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "extension"
TRACKER = """
import json
from dataclasses import dataclass

@dataclass
class LinesOptions:
    file: str = "metrics.jsonl"
    fails: bool = False

class Lines:
    Options = LinesOptions

    def __init__(self, folder, name, config, file, fails):
        self._fails = fails
        self._file = (folder / file).open("a")
        self._file.write(json.dumps({"run": name, **config}) + "\\n")

    def log(self, step, values):
        if self._fails:
            raise ConnectionError("the server is gone")
        self._file.write(json.dumps({"step": step, **values}) + "\\n")

    def close(self):
        self._file.close()
"""

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages."""
    return tmp_path / "site"


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with entry points and files, as pip leaves them."""

    def installed(
        group: str, *entries: str, files: Mapping[str, str], package: str = "extra"
    ) -> None:
        metadata = site / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        named = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        (metadata / "METADATA").write_text(named)
        lines = "\n".join(entries)
        (metadata / "entry_points.txt").write_text(f"[worldmodels.{group}]\n{lines}\n")
        for name, content in files.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(content)
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", str(site))

    return installed


def test_a_tracker_of_another_package_receives_the_metrics(
    install: Install, tmp_path: Path
) -> None:
    install("trackers", "lines = extra_tracker:Lines", files={"extra_tracker.py": TRACKER})
    logger = LoggerConfig(name="lines", options={"file": "log"})
    tracker = trackers.start(logger, tmp_path / "vae", "mine/vae", {"seed": 3})
    with MetricsLog(tmp_path / "vae/metrics.csv", tracker) as log:
        log.log(2, {"loss": 0.5})
    begun, line = map(json.loads, (tmp_path / "vae/log").read_text().splitlines())
    assert begun == {"run": "mine/vae", "seed": 3}
    assert 0 <= line.pop("progress/hours") < line.pop("system/memory_gb")
    assert line == {"step": 2, "loss": 0.5}
    assert [row[:3] for row in read_metrics(tmp_path / "vae/metrics.csv")] == [(2, "loss", 0.5)]


def test_metrics_are_kept_where_a_tracker_fails(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("trackers", "failing = extra_failing:Lines", files={"extra_failing.py": TRACKER})
    logger = LoggerConfig(name="failing", options={"fails": True})
    tracker = trackers.start(logger, tmp_path, "mine/vae", {})
    with MetricsLog(tmp_path / "metrics.csv", tracker) as log:
        log.log(1, {"loss": 2.0})
        log.log(2, {"loss": 1.0})
    assert [row[:3] for row in read_metrics(tmp_path / "metrics.csv")] == [
        (1, "loss", 2.0),
        (2, "loss", 1.0),
    ]
    (warning,) = caplog.messages
    assert "the tracker failed (ConnectionError: the server is gone)" in warning
    with pytest.raises(ConfigError, match=r"^logger=failing: cannot start \(FileNotFoundError"):
        nowhere = LoggerConfig(name="failing", options={"file": "no/such/folder"})
        trackers.start(nowhere, tmp_path, "mine/vae", {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("logger.name=comet",), "logger.name=comet: unknown tracker 'comet'; choose one of csv,"),
        (("logger.name=broken",), "tracker broken: extra_broken:Lines cannot be imported (Value"),
        (
            ("logger=csv", "+logger.options.port=6006"),
            "logger.options.port: logger=csv has no opti",
        ),
        (("logger.name=hollow",), "logger.options: <class 'str'> has no dataclass Options"),
        (
            ("logger.name=lines", "+logger.options.port=6006"),
            "logger.options.port: no such option; Lines has fails, file",
        ),
    ],
)
def test_a_tracker_that_cannot_be_used_is_one_line(
    install: Install, words: tuple[str, ...], said: str
) -> None:
    names = ("broken = extra_broken:Lines", "hollow = builtins:str", "lines = extra_lines:Lines")
    broken = "raise ValueError('no\\nkey')"
    install("trackers", *names, files={"extra_broken.py": broken, "extra_lines.py": TRACKER})
    with pytest.raises(ConfigError) as raised:
        extras.check(composed("stage=all", "evaluate.video=false", *words))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    extras.check(composed("stage=report", *words))  # which logs nothing


def test_trackers_are_imported_only_when_chosen(install: Install) -> None:
    install("trackers", "lines = extra_unused:Lines", files={"extra_unused.py": "raise SystemExit"})
    program = """
import sys
from worldmodels import extras
from worldmodels.config import schema
from worldmodels.runs import tracking
extras.check(schema.Config())
assert not {"wandb", "tensorboard"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=environment())


ENCODER = """
from worldmodels.models.vae import ConvVAE

class Tiny(ConvVAE):
    pass

class Unnamed(ConvVAE):
    pass

def factory(**sizes):
    return Unnamed(**sizes)

factory.Options = ConvVAE.Options
"""


def test_an_entry_point_may_name_a_class_by_a_module_that_imports_it(
    install: Install, tmp_path: Path
) -> None:
    names = ("other = extra_foreign:Tiny", "tiny = extra_tiny:Tiny", "made = extra_tiny:factory")
    files = {
        "extra_foreign.py": "raise SystemExit('imported')",
        "extra_tiny/__init__.py": "from extra_tiny.inner import Tiny, factory",
        "extra_tiny/inner.py": ENCODER,
    }
    install("encoders", *names, files=files)
    encoder = build_encoder(composed("preset=smoke", "vae.encoder=tiny").vae, 64)
    save_encoder(tmp_path / "vae.safetensors", encoder)
    assert type(load_encoder(tmp_path / "vae.safetensors")) is type(encoder)
    # Of a class that no entry point names, no file could be read: it is not trained.
    with pytest.raises(ConfigError, match=r"^vae\.encoder=made: Unnamed: is not registered; give"):
        build_encoder(composed("preset=smoke", "vae.encoder=made").vae, 64)


@pytest.mark.parametrize(
    ("group", "word", "what"),
    [
        ("encoders", "vae.encoder=resnet", "encoder resnet"),
        ("dynamics", "rnn.model=gru", "dynamics model gru"),
        ("trackers", "logger.name=tensorboard", "tracker tensorboard"),
        ("trackers", "logger.name=csv", "tracker csv"),
    ],
)
def test_a_package_cannot_add_a_class_of_a_built_in_name(
    install: Install, tmp_path: Path, group: str, word: str, what: str
) -> None:
    install(group, f"{word.partition('=')[2]} = extra_unused:Lines", files={})
    config = composed("stage=all", "preset=smoke", f"data={tmp_path}", word)
    said = f"{word}: {what} is built in, and the package extra adds another; rename its entry"
    with pytest.raises(ConfigError, match=f"^{said}"):
        extras.check(config)
        Context(config, Run(tmp_path / "run")).check()


def test_two_packages_cannot_add_a_class_of_the_same_name(install: Install) -> None:
    install("encoders", "tiny = extra_one:Tiny", files={})
    install("encoders", "tiny = extra_two:Tiny", files={}, package="other")
    with pytest.raises(ConfigError, match="encoder tiny: the packages extra and other each add"):
        build_encoder(composed("preset=smoke", "vae.encoder=tiny").vae, 64)


STORED = """
from dataclasses import dataclass, field

import torch
from torch import nn

from worldmodels.models.gru import GRUDynamics
from worldmodels.models.vae import ConvVAE


class Norm(ConvVAE):
    def __init__(self, latent_size: int, frame_size: int, folded: bool = False, **kl) -> None:
        super().__init__(latent_size, frame_size, folded, **kl)
        self.norm = nn.BatchNorm2d(3)
        constant = torch.full((1,), -torch.inf, device="cpu")  # in no file
        self.register_buffer("hidden", constant, persistent=False)

    def encode(self, images):
        return super().encode(self.norm(images))


class Vague(ConvVAE):
    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)


class Half(ConvVAE):
    def __init__(self, latent_size: int, frame_size: int, folded: bool = False, **kl) -> None:
        super().__init__(latent_size, frame_size, folded, **kl)
        self.register_buffer("middle", torch.full((1,), 0.5), persistent=False)


class Masked(ConvVAE):
    def __init__(self, latent_size: int, frame_size: int, folded: bool = False, **kl) -> None:
        super().__init__(latent_size, frame_size, folded, **kl)
        self.register_buffer("mask", torch.ones(2, 2).bool())


@dataclass
class ListOptions:
    widths: list[int] = field(default_factory=lambda: [16, 16])


class Lists(ConvVAE):
    Options = ListOptions

    def __init__(self, latent_size: int, frame_size: int, widths: list[int]) -> None:
        super().__init__(latent_size, frame_size)
        self.widths = list(widths)

    @property
    def sizes(self):
        given = {"latent_size": self.latent_size, "frame_size": self.frame_size}
        return {**given, "widths": self.widths}


class Forgetful(GRUDynamics):
    @property
    def sizes(self):
        return {**super().sizes, "hidden_size": 7}


@dataclass
class DepthOptions:
    depth: int | None = None


class Deep(GRUDynamics):
    Options = DepthOptions

    def __init__(
        self, latent_size: int, action_size: int, sampled: bool, depth: int | None = None
    ) -> None:
        super().__init__(latent_size, action_size, sampled=sampled)
        self.depth = depth

    @property
    def sizes(self):
        names = ("latent_size", "action_size", "sampled", "depth")
        return {name: getattr(self, name) for name in names}
"""


def test_an_encoder_with_batch_normalisation_comes_back_from_its_file(
    install: Install, tmp_path: Path
) -> None:
    install("encoders", "norm = extra_norm:Norm", files={"extra_norm.py": STORED})
    encoder: Any = build_encoder(composed("preset=smoke", "vae.encoder=norm").vae, 64)
    pictures = torch.rand(2, 3, 64, 64)
    encoder.train().encode(pictures)  # statistics other than those of a new module
    save_encoder(tmp_path / "vae.safetensors", encoder)
    read: Any = load_encoder(tmp_path / "vae.safetensors")
    assert torch.equal(read.norm.num_batches_tracked, torch.tensor(1))
    assert torch.equal(read.encode(pictures).mean, encoder.eval().encode(pictures).mean)


@pytest.mark.parametrize(
    ("group", "name", "said"),
    [
        ("encoders", "Half", "buffer middle; register it with persistent=True, or create a const"),
        ("encoders", "Masked", "tensor mask, which is torch.bool; make it float32 or int64"),
        ("encoders", "Vague", "folded in its sizes has no type; annotate the argument of its con"),
        ("encoders", "Lists", "widths=[16, 16], it has to be a short text; give the option the t"),
        ("dynamics", "Deep", "depth=None, it has to be a short text; give the option the type in"),
        ("dynamics", "Forgetful", "from its sizes has other tensors (gru.weight_ih_l0 is not a"),
    ],
)
def test_a_model_whose_file_could_not_be_read_ends_a_chain_before_its_first_stage(
    install: Install, tmp_path: Path, group: str, name: str, said: str
) -> None:
    install(group, f"own = extra_{name}:{name}", files={f"extra_{name}.py": STORED})
    key = "vae.encoder=own" if group == "encoders" else "rnn.model=own"
    config = composed("stage=all", "preset=smoke", f"data={tmp_path}", key)
    with pytest.raises(ConfigError) as raised:
        Context(config, Run(tmp_path / "run")).check()
    assert str(raised.value).startswith(f"{key}: {name}")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


GROUPS = {
    "extra_maze/__init__.py": "raise SystemExit('imported')",
    "extra_maze/conf/env/maze.yaml": "# A maze.\nname: maze\nid: extra_maze:Maze-v0\n",
    "extra_maze/conf/env/carracing.yaml": "name: replaced\n",
    "extra_maze/conf/experiment/maze/smoke.yaml": "# @package _global_\nvae: {epochs: -7}\n",
}


def test_configuration_groups_of_another_package_are_added_without_an_import(
    install: Install, tmp_path: Path
) -> None:
    install("conf", "extra = extra_maze.conf", files=GROUPS)
    listed = started_anew(tmp_path, "--help")
    assert "  env=maze                 A maze\n" in listed.stdout, listed.stderr
    assert listed.stdout.count("  env=carracing ") == 1
    assert "env.name=carracing " in listed.stdout  # groups of this package are not replaced
    line = error_line(started_anew(tmp_path, "env=maze", "preset=smoke"))
    assert "vae.epochs=-7" in line  # of its experiment
    line = error_line(started_anew(tmp_path, "env=5"))
    assert re.search("choose one of .*carracing, .*maze", line)


def test_a_package_without_its_configuration_groups_is_one_line(
    install: Install, tmp_path: Path
) -> None:
    install("conf", "extra = extra_maze.groups", files=GROUPS)
    line = error_line(started_anew(tmp_path, "env=maze"))
    assert "the package extra names extra_maze.groups, and there is no such folder" in line


def test_the_readme_of_the_example_counts_the_lines_of_each_part() -> None:
    rows = re.findall(r"^\| [^|]+ \| (.*) \| (\d+) \|$", (EXAMPLE / "README.md").read_text(), re.M)
    assert len(rows) == 4
    for files, count in rows:
        lines = [
            line
            for name in re.findall(r"`([^`]+)`", files)
            for line in (EXAMPLE / "example_extension" / name).read_text().splitlines()
        ]
        assert len(lines) == int(count), files
