"""The card of an agent on the Hugging Face Hub: what it is, its scores, how they were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from worldmodels.agents.folder import Agent
from worldmodels.agents.registry import name_of
from worldmodels.config.shipped import environment_of
from worldmodels.errors import DISTRIBUTION, install
from worldmodels.files.untrusted import printable
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.records import Record, configuration, is_imported, machine
from worldmodels.reporting.scores import PAPER_SCORES, SCORE_HEADER, Score, score_rows

_TEXT = 200
_CARD = """---
{metadata}
---

# {name}: an agent for {environment}

An encoder (`{encoder}`, {encoder_size} M parameters), a dynamics model (`{dynamics}`,
{dynamics_size} M) and a controller ({controller:,} parameters), trained with World Models Gym
(`{distribution}`), after *World Models* (Ha & Schmidhuber, 2018).

![Frames in the learned model](dream.png)

Four episodes in the learned model at temperature {temperature:g}, one a row, in which the
controller acts: every eighth frame, decoded from its latent.

## Scores

{scores}
## Use

```sh
{install}
python -m worldmodels stage=evaluate run=check {override} model=hf://<owner>/<name>@<revision>
```

```python
import worldmodels

agent = worldmodels.load_agent("hf://<owner>/<name>@<revision>")
```

Weights are safetensors, without a pickle; `agent.json` has the SHA-256 of each file.
{training}"""
_UNSCORED = "Not measured.\n"
_MEASURED = """{table}
Measured by `stage=evaluate` in {environment} ({engine}), {steps:,} steps at most, one episode for
each seed; {others}. The interval is a bootstrap interval
of the mean. {maker}
"""
_OTHERS = "the seeds of training and of selection are others"
_OTHERS_IMPORTED = """the seeds of selection are others, those of the imported episodes that it was
trained on may be among them"""
_TRAINING = """
## Training

{table}
`config.json` has the configuration of each stage.
"""


class Trained(NamedTuple):
    """A stage that made the agent.

    Args:
        stage: its name.
        seed: of the run.
        manifest: of its artifact.
    """

    stage: str
    seed: int
    manifest: Record


class Evaluated(NamedTuple):
    """An evaluation of the agent.

    Args:
        scores: of the agent and of others.
        manifest: of the stage ``evaluate``.
    """

    scores: list[Score]
    manifest: Record


def card(
    name: str,
    agent: Agent,
    trained: Sequence[Trained],
    evaluated: Evaluated | None,
    temperature: float,
) -> str:
    """The card, as Markdown with metadata of the Hub in front.

    Args:
        name: of the agent.
        agent: its models and configuration.
        trained: the stages that made it; none where they are not known.
        evaluated: its scores, if it was evaluated.
        temperature: of the picture.

    Raises:
        ArtifactError: a manifest lacks a field.
    """
    environment = agent.config.env_id
    return _CARD.format(
        metadata="\n".join(_metadata(name, environment, evaluated)),
        name=printable(name, _TEXT),
        environment=environment,
        encoder=name_of(agent.encoder),
        encoder_size=_millions(agent.encoder),
        dynamics=name_of(agent.dynamics),
        dynamics_size=_millions(agent.dynamics),
        controller=agent.parameters.size,
        distribution=DISTRIBUTION,
        temperature=temperature,
        scores=_UNSCORED if evaluated is None else _measured(environment, evaluated, trained),
        install=install("hub"),
        override=environment_of(environment),
        training=_training(trained),
    )


def _metadata(name: str, environment: str, evaluated: Evaluated | None) -> Iterable[str]:
    """Lines of YAML, of which JSON is a part."""
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    yield f"library_name: {DISTRIBUTION}"
    yield "pipeline_tag: reinforcement-learning"
    yield f"tags: {json.dumps(['reinforcement-learning', 'world-models', environment])}"
    scores = {} if evaluated is None else {score.name: score for score in evaluated.scores}
    if "agent" in scores:
        score = scores["agent"]
        metric = {"type": "mean_reward", "name": "mean_reward"}
        metric["value"] = f"{score.mean:.2f} +/- {score.std:.2f}"
        data = {"type": environment, "name": environment}
        result: dict[str, Any] = {"task": task, "dataset": data, "metrics": [metric]}
        index = [{"name": printable(name, _TEXT), "results": [result]}]
        yield f"model-index: {json.dumps(index)}"


def _measured(environment: str, evaluated: Evaluated, trained: Sequence[Trained]) -> str:
    imported = any(one.stage == "rollouts" and is_imported(one.manifest) for one in trained)
    rows = score_rows(evaluated.scores, PAPER_SCORES.get(environment, []))
    config = configuration(evaluated.manifest)
    return _MEASURED.format(
        table=_table(SCORE_HEADER, rows),
        environment=printable(config.text("env.id"), _TEXT),
        engine=printable(config.text("env.engine"), _TEXT),
        steps=config.count("env.max_steps"),
        others=_OTHERS_IMPORTED if imported else _OTHERS,
        maker=_maker(evaluated.manifest),
    )


def _training(trained: Sequence[Trained]) -> str:
    if not trained:
        return ""
    rows = [
        (one.stage, str(one.seed), f"{one.manifest.number('wall_s'):,.0f} s", _maker(one.manifest))
        for one in trained
    ]
    return _TRAINING.format(table=_table(("stage", "seed", "wall time", "made with"), rows))


def _maker(manifest: Record) -> str:
    """Machine and versions of a stage, as a sentence."""
    versions = ", ".join(f"{name} {text}" for name, text in manifest.texts("versions").items())
    commit = manifest.fields.get("commit")
    made = f"{machine(manifest)}; Python {manifest.text('python')}, {versions}"
    return printable(f"{made}; commit {commit}." if commit else f"{made}.", 10 * _TEXT)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *(map(_escaped, row) for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _escaped(text: str) -> str:
    """A text from a file, such as the name of a policy, as no more than text in Markdown."""
    return re.sub(r"[\\`*|<>\[\]]", r"\\\g<0>", printable(text, 10 * _TEXT))


def _millions(module: Encoder | DynamicsModel) -> str:
    return f"{sum(tensor.numel() for tensor in module.state_dict().values()) / 1e6:.2f}"
