"""A run's answers to the machine learning reproducibility checklist, version 2.0.

The questions are those of Pineau et al. (2021), "Improving Reproducibility in Machine Learning
Research", as far as they concern experiments. What the stages recorded is filled in; what the
authors alone know is left open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from worldmodels.reporting.html import fill
from worldmodels.reporting.page import absence
from worldmodels.reporting.records import (
    Record,
    configuration,
    is_imported,
    machine,
    read_record,
    read_scores,
)
from worldmodels.runs.integrity import SHARDS
from worldmodels.seeds import EVALUATION_END

Manifests = dict[str, Record]
"""The manifests of the finished stages, by the name of the stage."""

CHECKLIST = "reproducibility.html"
"""The name of the file."""
MODELS = ("vae", "rnn")
"""The stages that train on recorded episodes."""


class Item(NamedTuple):
    """A question and its answer; None where the authors have to answer."""

    question: str
    answer: str | None


def render_checklist(name: str, folders: dict[str, Path]) -> str:
    """The checklist as HTML.

    Args:
        name: of the run.
        folders: stage -> folder, for the finished stages.

    Raises:
        ArtifactError: a file of a finished stage is damaged or of another form.
    """
    manifests = {stage: read_record(path / "manifest.json") for stage, path in folders.items()}
    settings = [
        (stage, key, _written(value))
        for stage, manifest in manifests.items()
        for key, value in sorted(configuration(manifest).fields.items())
    ]
    sections = {
        "Models and algorithms": [_models(manifests), _complexity(manifests)],
        "Data": [
            _examples(manifests),
            _splits(manifests),
            _preprocessing(manifests),
            Item("A link to a version of the data set that can be downloaded.", None),
            _collection(manifests),
        ],
        "Code": [
            _dependencies(manifests),
            Item(
                "Training and evaluation code, and the commands that produce the results.",
                "python -m worldmodels stage=all, with the configuration below and the commits"
                " above. A stage that is stopped and continued makes the same artifact.",
            ),
            _trained(manifests),
        ],
        "Results": [
            Item(
                "The range of hyperparameters considered, and how the best configuration was"
                " selected.",
                None,
            ),
            Item("The hyperparameters of the results.", "The configuration below."),
            _runs(manifests),
            _measure(manifests),
            _statistics(folders, manifests),
            _runtime(manifests),
            _machines(manifests),
        ],
    }
    values = {"name": name, "sections": sections, "configuration": settings}
    return fill(CHECKLIST, values)


def _models(manifests: Manifests) -> Item:
    question = "A clear description of the models and the algorithm."
    parts = []
    if "vae" in manifests:
        parts.append(f"Encoder {_keys(manifests['vae'], 'vae.encoder', 'vae.latent_size')}.")
    if "rnn" in manifests:
        keys = ("rnn.model", "rnn.members", "rnn.hidden_size", "rnn.mixtures")
        parts.append(f"Dynamics model {_keys(manifests['rnn'], *keys)}.")
    if "controller" in manifests:
        parts.append(_controller(manifests["controller"]))
    return Item(question, " ".join(parts) or absence("vae", manifests))


def _controller(manifest: Record) -> str:
    shape = ("controller.features", "controller.hidden_units")
    if manifest.group("summary").optional("updates") is not None:
        trained = ("updates", "batch_size", "horizon", "discount", "return_lambda")
        found = _keys(manifest, *shape, *(f"actor_critic.{key}" for key in trained))
        return f"Controller, trained by gradients in the learned model with a critic, {found}."
    own = ("pca_components", "diagonal", "population", "episodes")
    found = _keys(manifest, *shape, *(f"controller.{key}" for key in own))
    return f"Controller, searched by CMA-ES, {found}."


def _complexity(manifests: Manifests) -> Item:
    parts = []
    for stage, manifest in manifests.items():
        peaks = manifest.group("resources").numbers("peak_bytes")
        memory = " and ".join(f"{peak / 1e9:.2f} GB ({where})" for where, peak in peaks.items())
        parts.append(f"{stage}: {manifest.number('wall_s'):,.0f} s, at most {memory}")
    return Item("An analysis of time and memory.", f"Measured: {'; '.join(parts)}.")


def _examples(manifests: Manifests) -> Item:
    question = "Relevant statistics, such as the number of examples."
    if "rollouts" not in manifests:
        return Item(question, absence("rollouts", manifests))
    summary = manifests["rollouts"].group("summary")
    episodes, frames = summary.number("episodes"), summary.number("frames")
    return Item(
        question,
        f"{episodes:,.0f} episodes with {frames:,.0f} frames, mean return"
        f" {summary.number('mean_return'):,.1f}.",
    )


def _splits(manifests: Manifests) -> Item:
    parts = []
    for stage, what in (("vae", "encoder"), ("rnn", "dynamics model")):
        if stage in manifests:
            share = manifests[stage].group("config").number(f"{stage}.validation_fraction")
            parts.append(f"{share:.0%} of the episodes validate the {what}")
    if parts:
        parts[-1] += "; a hash of an episode's seed and the run's decides which"
    if "evaluate" in manifests:
        config = manifests["evaluate"].group("config")
        first, count = config.count("evaluate.first_seed"), config.count("evaluate.episodes")
        parts.append(
            f"The scores are those of seeds {first} to {first + count - 1}. Seeds of evaluations"
            f" are below {EVALUATION_END:,}; those that this program draws for collection, training"
            f" and selection are from other ranges{_seen_before(manifests)}"
        )
    question = "The details of the splits into training, validation and test."
    return Item(question, f"{'. '.join(parts)}." if parts else absence("vae", manifests))


def _seen_before(manifests: Manifests) -> str:
    """What follows from the ranges of the seeds, where the episodes of training are known."""
    rollouts = [m for stage, m in manifests.items() if stage.split("/")[-1] == "rollouts"]
    if any(is_imported(manifest) for manifest in rollouts):
        return (
            ". Imported episodes keep the seeds that they were recorded with, which may be among"
            " those of the scores"
        )
    return ", so that no score is of a seed that was used before" if rollouts else ""


def _preprocessing(manifests: Manifests) -> Item:
    question = "Excluded data, and all preprocessing."
    if "rollouts" not in manifests:
        return Item(question, absence("rollouts", manifests))
    found = _keys(manifests["rollouts"], "env.crop_rows", "env.size")
    trained = [manifests[name].group("inputs").fields for name in MODELS if name in manifests]
    used = sorted({str(inputs.get(SHARDS, "all")) for inputs in trained})
    return Item(
        question,
        f"The upper env.crop_rows rows of a picture are reduced to env.size x env.size pixels"
        f" ({found}). Data files that models were trained on: {', '.join(used) or 'none yet'}.",
    )


def _collection(manifests: Manifests) -> Item:
    question = "For new data, the process of collection and the methods of quality control."
    if "rollouts" not in manifests:
        return Item(question, absence("rollouts", manifests))
    config = manifests["rollouts"].group("config").fields
    keys = [
        key for key in config if key.startswith(("env.id", "env.engine", "rollouts.", "format"))
    ]
    how = "Imported" if "format" in config else "Simulated"
    return Item(
        question,
        f"{how}: {_keys(manifests['rollouts'], *keys)}. The manifest has the SHA-256 of each file.",
    )


def _dependencies(manifests: Manifests) -> Item:
    software, commits = set(), set()
    for manifest in manifests.values():
        versions = [f"{name} {version}" for name, version in manifest.texts("versions").items()]
        software.add(f"Python {manifest.text('python')}, {', '.join(versions)}")
        if manifest.fields.get("commit"):
            commits.add(manifest.text("commit"))
    known = ", ".join(sorted(commits)) or "unknown"
    return Item("The dependencies.", f"{'; '.join(sorted(software))}. Commit: {known}.")


def _trained(manifests: Manifests) -> Item:
    found = [f"{stage} {manifest.text('fingerprint')}" for stage, manifest in manifests.items()]
    return Item("The trained models.", f"Fingerprints of the artifacts: {', '.join(found)}.")


def _runs(manifests: Manifests) -> Item:
    found = {_written(m.group("config").fields.get("seed", "unknown")) for m in manifests.values()}
    return Item(
        "The exact number of training and evaluation runs.",
        f"One run, of seed {', '.join(sorted(found))}. Other runs, and other seeds, are reported in"
        " sheets of their own.",
    )


def _measure(manifests: Manifests) -> Item:
    question = "A clear definition of the measure used to report results."
    if "evaluate" not in manifests:
        return Item(question, absence("evaluate", manifests))
    found = _keys(manifests["evaluate"], "env.id", "evaluate.engine", "env.max_steps")
    return Item(question, f"The return, which is the sum of an episode's rewards ({found}).")


def _statistics(folders: dict[str, Path], manifests: Manifests) -> Item:
    question = "The results with a measure of central tendency and of variation."
    if "evaluate" not in folders:
        return Item(question, absence("evaluate", manifests))
    parts = []
    for name, score in read_scores(folders["evaluate"] / "scores.json").items():
        text = f"{name}: mean {score.mean:,.1f}, standard deviation {score.std:,.1f}"
        if score.has_interval:
            low, high = score.interval
            text += f", 95 % bootstrap interval of the mean {low:,.1f} to {high:,.1f}"
        text += f", interquartile mean {score.interquartile_mean:,.1f}"
        parts.append(f"{text}, {len(score.returns)} episodes")
    return Item(
        question,
        f"{'; '.join(parts)}. evaluate/scores.json has the seed and the return of every episode."
        " The variation is that of episodes of one trained agent, not of trained agents.",
    )


def _runtime(manifests: Manifests) -> Item:
    seconds = sum(manifest.number("wall_s") for manifest in manifests.values())
    busy = sum(manifest.group("resources").number("cpu_s") for manifest in manifests.values())
    return Item(
        "The average time of each result, or estimated energy costs.",
        f"{seconds / 3600:.2f} hours of wall time and {busy / 3600:.2f} core-hours, all stages"
        " together. Energy was not measured.",
    )


def _machines(manifests: Manifests) -> Item:
    found = sorted({machine(manifest) for manifest in manifests.values()})
    return Item("A description of the computing infrastructure.", f"{'; '.join(found)}.")


def _keys(manifest: Record, *keys: str) -> str:
    """Keys of a stage with their values."""
    found = configuration(manifest).fields
    return ", ".join(f"{key}={_written(found.get(key, 'unknown'))}" for key in keys)


def _written(value: object) -> str:
    """The value of a key as a command line has it."""
    return value if isinstance(value, str) else json.dumps(value)
