"""An agent in ``pretrained/``: its files, a card, and the pictures of the run that made it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import tables
import torch

from worldmodels.agent import load_agent, save_config

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
PICTURES = {"episodes": "rollouts/contact_sheet.png", "vision": "vae/reconstructions.png"}


class Published(NamedTuple):
    """What a card says of the agent of a run, beside its figures.

    Args:
        folder: in ``pretrained/``.
        game: its name.
        env: the words that name it to the program; empty for the default.
        judged: where it was played.
        sees: what it sees.
    """

    folder: str
    game: str
    env: str
    judged: str
    sees: str


PUBLISHED = {
    "laptop": Published(
        "carracing",
        "CarRacing-v3",
        "",
        "Gymnasium's own CarRacing-v3, 1,000 steps at most",
        "the upper 84 of the 96 rows of a frame, reduced to 64x64, in the default colours. Other\n"
        "  colours (`domain_randomize`) and other games are strange to it",
    ),
    "takecover": Published(
        "takecover",
        "Doom Take Cover",
        " env=takecover",
        "ViZDoom's own VizdoomTakeCover-v1, 2,100 steps at most, a point each; C was trained\n"
        "in M's dream alone",
        "the upper 200 of the 240 rows of a frame, reduced to 64x64. Other scenarios are strange\n"
        "  to it",
    ),
}
"""Runs whose agents are in ``pretrained/``."""


FOLDED = """
  V's decoder begins with the product of its first two layers, which have nothing between them: it
  has fewer parameters than in training."""
CARD = """# An agent for {game}

A VAE ({vision}), an MDN-RNN ({memory}) and a linear controller ({controller}), trained by

    python -m worldmodels stage=all preset=laptop{env}

{scores}
Played in {judged}. The same figure, or another with other seeds:

    python -m worldmodels stage=evaluate run=check{env} model=pretrained/{folder} \\
        evaluate.first_seed=0

- {size} MB of safetensors, no pickle; what was used in bfloat16 in training is in bfloat16.{folded}
- It sees {sees}.
- The controller was selected on other seeds than it was trained on, and is judged on others again
  (`worldmodels/seeds.py`).
- Made in {hours} hours, judging included; its search took {generations} generations, {steps} M
  steps.
- Made by {maker}
MIT licence. How it learned: [docs/results.md](../../docs/results.md).
"""


def publish(folder: Path, run: dict[str, Any], pictures: Path) -> None:
    """Copy the agent of the run in `folder` to ``pretrained/``, with a card.

    Args:
        folder: of a run that `PUBLISHED` names.
        run: what `render.take_run` kept of it.
        pictures: where its pictures go.
    """
    published, source = PUBLISHED[folder.name], folder / "controller" / "agent"
    target = PRETRAINED / published.folder
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    agent = load_agent(target)
    save_config(target, agent.config)  # with the SHA-256s, whichever version made the run
    search = run["stages"]["controller"]
    hours = sum(stage["wall_s"] for stage in run["stages"].values()) / 3600
    card = CARD.format(
        **published._asdict(),
        vision=f"{_millions(agent.encoder)} M parameters",
        folded=FOLDED if agent.encoder.sizes.get("folded") else "",
        memory=f"{_millions(agent.dynamics)} M",
        controller=f"{agent.parameters.size:,}",
        size=f"{sum(path.stat().st_size for path in source.iterdir()) / 1e6:.1f}",
        scores=tables.scores(run),
        hours=f"{hours:.1f}",
        steps=f"{search['summary']['steps'] / 1e6:.1f}",
        generations=search["summary"]["generations"],
        maker=tables.maker(run),
    )
    (target / "README.md").write_text(card)
    for name, picture in PICTURES.items():
        shutil.copyfile(folder / picture, pictures / f"{folder.name}-{name}.png")
    film = folder / "evaluate" / "median.mp4"
    # Every fourth frame of ten seconds, at half the size, with a palette of its own.
    chain = "select=not(mod(n\\,4)),setpts=N/12.5/TB,scale=iw/2:-1:flags=neighbor,split[a][b];"
    chain += "[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-t", "10", "-i", film]
    command += ["-vf", chain, "-r", "12.5", pictures / f"{folder.name}.gif"]
    subprocess.run([str(word) for word in command], check=True)


def _millions(module: torch.nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()) / 1e6:.2f}"
