"""An agent in ``pretrained/``: its files, a card, and the pictures of the run that made it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import tables
from dream_video import write_video

from worldmodels.agents.folder import read_agent, save_config
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
PICTURES = {"episodes": "rollouts/contact_sheet.png", "vision": "vae/reconstructions.png"}


class Published(NamedTuple):
    """The text of the card of an agent, besides its figures.

    Args:
        folder: in ``pretrained/``.
        title: name of the environment.
        command: that trained it.
        env: the override that chooses the environment; empty for the default.
        evaluated_in: the environment of its scores.
        observations: how its frames are made.
        page: of its results.
    """

    folder: str
    title: str
    command: str
    env: str
    evaluated_in: str
    observations: str
    page: str


PUBLISHED = {
    "laptop": Published(
        "carracing",
        "CarRacing-v3",
        "stage=all preset=laptop",
        "",
        "Gymnasium's CarRacing-v3, 1,000 steps at most",
        "the upper 84 of the 96 rows of a frame, reduced to 64x64, in the default colours. It was\n"
        "  not trained with other colours (`domain_randomize`)",
        "docs/results-carracing.md",
    ),
    "takecover": Published(
        "takecover",
        "Doom Take Cover",
        "stage=all preset=laptop env=takecover",
        " env=takecover",
        "ViZDoom's VizdoomTakeCover-v1, 2,100 steps at most, reward 1 per step. The controller\n"
        "was trained in the learned model only",
        "the upper 200 of the 240 rows of a frame, reduced to 64x64. It was not trained on other\n"
        "  scenarios",
        "docs/results-takecover.md",
    ),
    "dream-1": Published(
        "carracing-dream",
        "CarRacing-v3, trained in the learned model only",
        "stage=iterate preset=dream-rounds",
        "",
        "Gymnasium's CarRacing-v3, 1,000 steps at most",
        "whole frames with the instruments below, reduced to 64x64; each action is repeated for 4\n"
        "  frames (`env.frame_skip`)",
        "docs/results-dream.md",
    ),
}
"""Runs whose agents are in ``pretrained/``."""


FOLDED = """
  The first two layers of the VAE's decoder, linear ones, are stored as their product: it has fewer
  parameters than in training."""
CARD = """# An agent for {title}

A VAE ({encoder}), an MDN-RNN ({dynamics}) and a controller ({controller}), trained by

    python -m worldmodels {command}

{scores}
Evaluated in {evaluated_in}. To evaluate it again in the environment, on these or other
seeds:

    python -m worldmodels stage=evaluate run=check{env} model=pretrained/{folder} \\
        evaluate.first_seed={first_seed}

- {size} MB of safetensors, no pickle; what was used in bfloat16 in training is in bfloat16.{folded}
- Observations: {observations}.
- Training, selection and evaluation of the controller use disjoint seeds (`worldmodels/seeds.py`).
- {hours} hours for all stages, evaluation included; {search}.
- Machine and versions: {maker}
MIT licence. Curves and comparisons: [{page}](../../{page}).
"""


def publish(folder: Path, run: dict[str, Any], pictures: Path) -> None:
    """Copy the agent of the run in `folder` to ``pretrained/``, with a card.

    Args:
        folder: of a run that `PUBLISHED` names.
        run: the record that `render.take_run` or `rounds.taken` wrote.
        pictures: folder for its pictures.
    """
    published = PUBLISHED[folder.name]
    last = folder / run["rounds"][-1]["name"] if "rounds" in run else folder
    source, target = last / "controller" / "agent", PRETRAINED / published.folder
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    agent = read_agent(target)
    save_config(target, agent.config)  # with the SHA-256s, whichever version made the run
    card = CARD.format(
        **published._asdict(),
        encoder=f"{_millions(agent.encoder)} M parameters",
        folded=FOLDED if agent.encoder.sizes.get("folded") else "",
        dynamics=f"{_millions(agent.dynamics)} M",
        controller=f"{agent.parameters.size:,} parameters",
        size=f"{sum(path.stat().st_size for path in source.iterdir()) / 1e6:.1f}",
        scores=tables.scores(run),
        first_seed=run["scores"]["agent"]["seeds"][0],
        hours=f"{tables.wall_s(run) / 3600:.1f}",
        search=_search(run),
        maker=tables.maker(run),
    )
    (target / "README.md").write_text(card)
    video = pictures / f"{folder.name}.gif"
    if "rounds" in run:
        write_video(target, video, run["scores"]["agent"]["seeds"][0], 12.5)
        return
    _excerpt(folder / "evaluate" / "median.mp4", video, agent.config.frame_skip)
    for name, picture in PICTURES.items():
        shutil.copyfile(folder / picture, pictures / f"{folder.name}-{name}.png")


def _search(run: dict[str, Any]) -> str:
    """What the training of the controller took."""
    if "rounds" in run:
        frames = run["rounds"][-1]["frames"]["total"]
        return (
            f"{len(run['rounds'])} rounds collected {frames:,} frames\n  and trained the controller"
            f" for {run['steps'] / 1e6:.1f} M actions in the learned model"
        )
    summary = run["stages"]["controller"]["summary"]
    return (
        f"the search for the controller took\n  {summary['generations']} generations,"
        f" {summary['steps'] / 1e6:.1f} M actions"
    )


def _excerpt(video: Path, path: Path, frame_skip: int) -> None:
    """Every fourth step of the simulator, of ten seconds, at half the size, with a palette of its
    own. The video has a frame for each `frame_skip` steps."""
    every = max(1, 4 // frame_skip)
    chain = f"select=not(mod(n\\,{every})),setpts=N/12.5/TB,scale=iw/2:-1:flags=neighbor,"
    chain += "split[a][b];"
    chain += "[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-t", "10", "-i", video]
    command += ["-vf", chain, "-r", "12.5", path]
    subprocess.run([str(word) for word in command], check=True)


def _millions(module: Encoder | DynamicsModel) -> str:
    return f"{sum(tensor.numel() for tensor in module.state_dict().values()) / 1e6:.2f}"
