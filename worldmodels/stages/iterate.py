"""Stage ``iterate``: rounds of collection and training (paper, section 5).

Round one runs the stages as ``stage=all`` does, with the settings of the bootstrap run where the
configuration has one and ``base=`` names no agent; ``base=<run>`` reuses the finished stages of an
earlier run as round one. Each later round collects with the controller of the round before, with
noise on its parameters, and trains on the episodes of all rounds; encoder, dynamics model and
controller start from the weights of the round before. ``rounds.json``, written after each round,
has the scores of its agent, and its frames, returns and the calibration of its dynamics model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worldmodels.config.schema import Config, changed, round_config
from worldmodels.files.atomic import write_json
from worldmodels.reporting.records import read_scores
from worldmodels.reporting.rounds import ROUNDS, round_in_words, round_record, settled
from worldmodels.reporting.scores import AGENT_IN_DREAM, PAPER_SCORES, Score, score_table
from worldmodels.runs.artifacts import Run
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import console, say
from worldmodels.stages import controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.context import Context
from worldmodels.stages.sequence import in_order


def run(context: Context) -> None:
    """Run the rounds that are missing, each in a folder of its own."""
    earlier: tuple[Run, ...] = ()
    entries: list[dict[str, Any]] = []
    scores: list[Score] = []
    config = context.config
    for number in range(1, config.iterate.rounds + 1):
        rounds = configured(context, number)
        base = None if earlier else context.run.base
        root = context.run.root / f"round-{number}"
        this = Run(root, base, context.run.name, made_by="iterate")
        say(f"iterate: round {number} of {config.iterate.rounds} ({this.root})")
        stage = Context(rounds, this, None if earlier else context.published, earlier)
        in_order(stage, rollouts, vae, rnn, controller, evaluate, report)
        earlier = (*earlier, this)
        entries.append(round_record(this, entries, config.calibration))
        scores += _scores(this)
        _write(context, scores, entries)
        say(f"iterate: {round_in_words(entries[-1])}")
        if number < config.iterate.rounds and settled(entries, config.iterate.patience):
            say(
                "iterate: no further round: the dynamics model is calibrated, and the newest"
                f" episodes are no better (iterate.patience={config.iterate.patience})"
            )
            break
    console.print(score_table(scores, PAPER_SCORES.get(config.env.id, [])))


def configured(context: Context, number: int) -> Config:
    """The configuration of a round.

    Args:
        context: of all rounds.
        number: of the round, from 1.
    """
    config = round_config(context.config, number)
    if number == 1 and context.published is None:
        config = changed(config, config.bootstrap)
    config.bootstrap = {}
    return config


def _scores(run: Run) -> list[Score]:
    """The scores of a round's agent, in the environment and in the dream it trained in.

    Raises:
        ArtifactError: they are missing or damaged.
    """
    found = read_scores(run.locate("evaluate") / "scores.json")
    return [
        replace(found[policy], name=policy.replace("agent", f"agent of {run.root.name}"))
        for policy in ("agent", AGENT_IN_DREAM)
        if policy in found
    ]


def _write(context: Context, scores: list[Score], entries: list[dict[str, Any]]) -> None:
    """Write ``rounds.json``, of the rounds so far."""
    named = {score.name: score.record() for score in scores}
    path = context.run.root / ROUNDS
    write_json(path, {**provenance(), "scores": named, "rounds": entries})
