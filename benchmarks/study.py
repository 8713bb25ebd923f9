"""Ablations and other variants of a run: ``make study``, many hours on two cores.

Each row is a variant of the run ``laptop`` or ``takecover``, which has to exist. It uses the VAE
and the MDN-RNN of that run, or trains an MDN-RNN of its own, and is evaluated on seeds 0 to 99.
Rows with the MDN-RNN of the run, searched along principal components that its agent stores, need
only that agent. The tables ``slips``, ``memory`` and ``noise`` need no run: their rows, or the
first one, use the VAE of the shipped agent; the other rows of ``memory`` and those of ``search``
use the first row of ``memory``, those of ``slips_dream`` the first one of ``slips``, and those of
``noise`` that train nothing its first one. Finished runs are skipped, so that the script can be
stopped and started again.

    python benchmarks/study.py carracing                # a study
    python benchmarks/study.py carracing ablation       # one table of it
    python benchmarks/study.py carracing search/full    # one row of it
    python benchmarks/study.py takecover parts --list   # the commands, one a line
    python benchmarks/study.py takecover temperatures --base pretrained/takecover
    python benchmarks/study.py carracing noise
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.progress import search_curve
from worldmodels.reporting.scores import AGENT_IN_DREAM
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

SEEDS = (1, 2, 3)
SEARCHED = ("controller.population=64", "controller.diagonal=true")
"""Values of preset=laptop for CarRacing when the rows were run, which have them where they say
nothing else: those with 128 candidates and with a full covariance matrix have become the preset."""
DREAMT = (
    "controller.world=dream",
    "controller.latent=sampled",
    "controller.total_steps=10_000_000",
)
"""Searches in the learned model of CarRacing whose data has random action bursts."""
AGENT = "pretrained/carracing"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        table: where it stands.
        name: of its runs, with the seed after it.
        what: the row's first cell.
        overrides: what differs from the base run.
        seeds: of its runs.
        base: what it is a variant of, instead of the study's base: a run, or the folder of an
            agent, whose VAE is used and whose controller collects where that is configured.
        of: name of the row in the same table whose agents are evaluated, where nothing is trained.
    """

    table: str
    name: str
    what: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    base: str | None = None
    of: str | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that differ from those of the base, and the evaluation."""
        if self.of is not None:
            return ("evaluate",)
        if self.base == AGENT:
            return ("rollouts", "vae", "rnn", "controller", "evaluate")
        own_dynamics = any(word.startswith("rnn.") for word in self.overrides)
        return (*(("rnn",) if own_dynamics else ()), "controller", "evaluate")


@dataclass(frozen=True)
class Study:
    """Variants of one run.

    Args:
        base: that run, or its agent's folder.
        overrides: of every command.
        rows: of all tables, the most important ones first.
        kept: overrides of the rows with a base of their own: its VAE is not trained further.
    """

    base: str
    overrides: tuple[str, ...]
    rows: tuple[Row, ...]
    kept: tuple[str, ...] = ("vae.epochs=0",)

    def run(self, row: Row, seed: int) -> str:
        """The name of a run."""
        return f"study/{row.table}/{row.name}-{seed}"

    def trained(self, row: Row, seed: int) -> str:
        """The name of the run whose agent is evaluated."""
        return self.run(row if row.of is None else replace(row, name=row.of), seed)

    def command(self, row: Row, stage: str, seed: int) -> list[str]:
        """One stage of a run."""
        base = self.trained(row, seed) if row.of else row.base or self.base
        return [
            *("python", "-m", "worldmodels", f"stage={stage}", "preset=laptop"),
            *(f"base={base}", f"run={self.run(row, seed)}", f"seed={seed}"),
            *("rnn.baselines=false", "evaluate.video=false", *self.overrides),
            *(self.kept if row.base or row.of else ()),
            *row.overrides,
        ]


def carracing() -> Study:
    """Searches of 2 M steps, or ten times as long in the learned model."""
    z, one = "controller.features=z", (1,)
    world = ("controller.world=dream", "controller.total_steps=20_000_000")
    dream = (*world, "controller.latent=sampled")
    means = (*world, "rnn.latent=mean", "controller.temperature=1.0")
    hidden = (z, "controller.hidden_units=40")
    return Study(
        "laptop",
        (*SEARCHED, "controller.total_steps=2_000_000", "evaluate.engine=native"),
        (
            Row("ablation", "full", "VAE, MDN-RNN, linear controller"),
            Row("ablation", "vision", "VAE, linear controller", (z,)),
            Row("ablation", "hidden", "VAE, controller with a hidden layer of 40", hidden),
            Row(
                "ablation",
                "untrained",
                "VAE, untrained MDN-RNN, linear controller",
                ("rnn.epochs=0",),
            ),
            *(
                Row(
                    "dream", f"tau-{t}", f"temperature {t}", (*dream, f"controller.temperature={t}")
                )
                for t in (0.1, 0.5, 1.0, 1.15, 1.3)
            ),
            Row("dream", "means", "temperature 1.0, means of latents", means),
            *(Row("slips", *row, one, AGENT) for row in _slips()),
            *(
                Row("slips_dream", *row, base="study/slips/epsilon-0.03-1")
                for row in _temperatures()
            ),
            Row("memory", "run", "as in the base run", (), one, AGENT),
            *(Row("memory", *row, one, "study/memory/run-1") for row in _dynamics_variants()),
            *(Row("search", *row, one, "study/memory/run-1") for row in _searches()),
            *_noise(),
        ),
        ("~bootstrap", "vae.epochs=0"),  # the agent replaces the bootstrap run
    )


Variant = tuple[str, str, tuple[str, ...]]
"""A row's name, first cell and overrides."""


def _slips() -> tuple[Variant, ...]:
    """Probability of random action bursts in the episodes that the MDN-RNN is trained on."""
    collection = ("rollouts.noise=0.05", "rnn.epochs=15")
    return tuple(
        (
            f"epsilon-{chance}",
            what,
            (
                *collection,
                f"rollouts.ez_greedy_epsilon={chance}",
                *DREAMT,
                "controller.temperature=1.0",
            ),
        )
        for chance, what in (
            *((0.03, "ε = 0.03"), (0.0, "ε = 0")),
            *((0.1, "ε = 0.1"), (0.01, "ε = 0.01")),
        )
    )


def _noise() -> tuple[Row, ...]:
    """Noise of the environment in all stages, or in the evaluation of the first row's agents.

    Every row that is trained goes on from the shipped agent's VAE, on episodes of that agent in the
    row's environment.
    """
    trained = ("vae.epochs=4", "rollouts.noise=0.05", "rnn.epochs=15")
    sticky, colours = "env.sticky_actions=0.25", "env.kwargs={domain_randomize: true}"
    rows = [Row("noise", "reference", "as the environment is", trained, base=AGENT)]
    for name, what, noise in (
        ("sticky", "sticky actions, 0.25", sticky),
        ("colours", "new colours in each episode", colours),
    ):
        evaluated = f"{what}, in evaluation only"
        rows.append(Row("noise", f"{name}-evaluated", evaluated, (noise,), of="reference"))
        both = f"{what}, in training and evaluation"
        rows.append(Row("noise", name, both, (*trained, noise), base=AGENT))
    return tuple(rows)


def _temperatures() -> tuple[Variant, ...]:
    """Temperatures of the MDN-RNN whose data has random action bursts."""
    return tuple(
        (f"tau-{t}", f"temperature {t}", (*DREAMT, f"controller.temperature={t}"))
        for t in (0.1, 0.5, 1.0, 1.15, 1.3)
    )


def _dynamics_variants() -> tuple[Variant, ...]:
    """Variants of the MDN-RNN, and of the controller's input from it."""
    return (
        ("shared", "one mixture for all dimensions", ("rnn.shared_mixture=true",)),
        ("means", "trained on means of latents", ("rnn.latent=mean",)),
        ("short", "windows of 25 steps", ("rnn.sequence_length=25", "rnn.batch_size=64")),
        ("sampled", "controller input: sampled latents", ("controller.latent=sampled",)),
        ("gaussian", "single Gaussian", ("rnn.mixtures=1",)),
        ("long", "windows of 400 steps", ("rnn.sequence_length=400", "rnn.batch_size=4")),
        ("after", "controller input: next LSTM state", ("controller.hidden=updated",)),
    )


def _searches() -> tuple[Variant, ...]:
    """Variants of the search."""
    return (
        ("patient", "no early end of stuck episodes", ("controller.stall_steps=null",)),
        ("sixteen", "16 episodes per candidate", ("controller.first_episodes=null",)),
        ("many", "128 candidates", ("controller.population=128",)),
        ("few", "32 candidates", ("controller.population=32",)),
        ("own", "CMA-ES step-size adaptation", ("controller.final_sigma=null",)),
        ("narrow", "initial step size 0.03", ("controller.sigma=0.03",)),
        ("wide", "initial step size 0.3", ("controller.sigma=0.3",)),
        ("full", "full covariance", ("controller.diagonal=false",)),
        ("raw", "search in feature space", ("controller.pca_components=null",)),
        ("all", "288 principal components", ("controller.pca_components=288",)),
        ("sixteen-components", "16 principal components", ("controller.pca_components=16",)),
    )


def takecover() -> Study:
    """Searches of the preset's steps; one seed, and several in the tables of temperatures.

    The tables ``parts`` and ``memories`` use a temperature at which so short a search succeeds.
    """
    one, mild = (1,), ("controller.temperature=1.0",)
    more = ("controller.total_steps=20_000_000", "controller.eval_episodes=256")
    return Study(
        "takecover",
        ("env=takecover", "evaluate.first_seed=0", "evaluate.episodes=100"),
        (
            *(
                Row(
                    "temperatures", f"tau-{t}", f"temperature {t}", (f"controller.temperature={t}",)
                )
                for t in (0.1, 0.5, 1.0, 1.15, 1.3)
            ),
            *(
                Row(
                    "temperatures",
                    f"annealed-{first}-{last}",
                    f"temperature {first} to {last}",
                    (f"controller.temperature={first}", f"controller.final_temperature={last}"),
                )
                for first, last in ((0.5, 1.15), (1.5, 1.0))
            ),
            Row("longer", "tau-0.5", "temperature 0.5", ("controller.temperature=0.5", *more)),
            Row("longer", "tau-1.0", "temperature 1.0", (*mild, *more), one),
            *(
                Row("memories", name, what, (*mild, *overrides), one)
                for name, what, overrides in _dream_variants()
            ),
            Row("parts", "z", "controller input: z", (*mild, "controller.features=z"), one),
            Row("parts", "zh", "controller input: z, h", (*mild, "controller.features=zh"), one),
            Row(
                "parts",
                "few",
                "48 principal components",
                (*mild, "controller.pca_components=48"),
                one,
            ),
            Row(
                "parts",
                "raw",
                "search in feature space",
                (*mild, "controller.pca_components=null"),
                one,
            ),
        ),
    )


def _dream_variants() -> tuple[Variant, ...]:
    """Variants of the MDN-RNN in which controllers are trained."""
    return (
        ("run", "as in the base run", ()),
        ("short", "one fifth of the epochs", ("rnn.epochs=2",)),
        ("deaths", "termination loss unweighted", ("rnn.termination_pos_weight=1",)),
        ("means", "means of latents", ("rnn.latent=mean", "controller.latent=mean")),
        ("shared", "one mixture for all dimensions", ("rnn.shared_mixture=true",)),
        ("reward", "reward predicted by the MDN-RNN", ("rnn.reward_weight=0.1",)),
        ("restart", "no is_first input", ("rnn.is_first=false",)),
    )


STUDIES = {"carracing": carracing, "takecover": takecover}


def result(data: Path, study: Study, row: Row, seed: int) -> dict[str, Any]:
    """The results of a finished run: scores, likelihood, steps, and the curve of its search."""
    scores = read_json(data / study.run(row, seed) / "evaluate" / "scores.json")
    run = data / study.trained(row, seed)
    search = read_json(run / "controller" / "manifest.json")
    bases = (run, data / (row.base or study.base))
    manifests = (folder / "rnn" / "manifest.json" for folder in bases)
    dynamics = next((path for path in manifests if path.exists()), None)
    returns = {
        name: [round(value, 2) for value in scores[who]["returns"]]
        for name, who in (("game", "agent"), ("dream", AGENT_IN_DREAM))
        if who in scores
    }
    return {
        "table": row.table,
        "name": row.name,
        "what": row.what,
        "seed": seed,
        "overrides": list(row.overrides),
        "returns": returns,
        "nll": read_json(dynamics)["summary"]["validation_nll"]["mdn_rnn"] if dynamics else None,
        "world": search["summary"]["world"],
        "selection": search["summary"]["selection_mean"],
        "steps": search["summary"]["steps"],
        "generations": search["summary"]["generations"],
        "wall_s": search["wall_s"],
        "commit": search["commit"],
        "inputs": search["inputs"],
        "curve": search_curve(run / "controller"),
    }


def main() -> None:
    """Run the missing runs, and after each one write ``study-<name>.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("tables", nargs="*", help="tables or table/row to fill; all without")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--base", help="an agent's folder, instead of the run that made it")
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    options = parser.parse_args()
    study = STUDIES[options.study]()
    study = replace(study, base=options.base or study.base)
    # A table has all its rows, of one seed, before the next seed begins.
    every = [(row, seed) for seed in SEEDS for row in study.rows if seed in row.seeds]
    known = {name for row in study.rows for name in (row.table, f"{row.table}/{row.name}")}
    if unknown := sorted(set(options.tables) - known):
        parser.error(f"{unknown[0]}: the study {options.study} has {', '.join(sorted(known))}")
    for row, seed in every:
        if options.tables and not {row.table, f"{row.table}/{row.name}"} & set(options.tables):
            continue
        for stage in row.stages:
            command = [*study.command(row, stage, seed), f"data={options.data}"]
            if options.list:
                print(shlex.join(command))
                continue
            done = subprocess.run([sys.executable, *command[1:]], check=False)
            if done.returncode:
                sys.exit(done.returncode)
        if not options.list:
            keep(options.data, options.study, study, every)


def keep(data: Path, name: str, study: Study, every: list[tuple[Row, int]]) -> None:
    """Write the results of the finished runs."""
    finished = [
        result(data, study, row, seed)
        for row, seed in every
        if (data / study.run(row, seed) / "evaluate" / "scores.json").exists()
    ]
    path = data / f"study-{name}.json"
    write_json(path, {**provenance(), "runs": finished})
    say(f"study: {len(finished)} of {len(every)} runs in {path}")


if __name__ == "__main__":
    main()
