"""Encoders and dynamics models beside the paper's, on equal data and with equal training time.

    python benchmarks/model_comparison.py carracing                  # all rows, seeds 1 to 3
    python benchmarks/model_comparison.py takecover gru --seed 2     # a row of one seed
    python benchmarks/model_comparison.py carracing data --seed 1    # the episodes alone
    python benchmarks/model_comparison.py carracing --list           # the commands, one a line

The rows of an environment and a seed are trained on the same episodes, each network for about
`--seconds` of processor time on one thread: its epochs are chosen by its measured throughput, when
a row of any seed first needs them, and kept for all seeds. An epoch is never divided, so that
encoders differ by up to half of one; results state the seconds. A model that is not the paper's has
the better of the two learning rates of ``preset=quick``, by the mean validation loss over all
seeds; a rate with which a loss is not finite is out. With `--settings` epochs and learning rates
are those of an earlier result, on whatever machine. Rows `gru` and `transformer` use the encoder of
row `paper`.

A controller is trained by CMA-ES in the learned model, with equal steps for all rows, and evaluated
there and in the environment; in CarRacing, where each action is held for four frames as in
`preset=quick`, another one in the environment. Finished work is skipped, after SIGTERM and SIGKILL
too. After SIGKILL, the stage that was running ends by itself: until then the same command stops
with an error that names it.

Results of all environments, rows and seeds are collected in ``model_comparison.json``; those that
it had before stay, unless they were made with other epochs or learning rates. Pictures are
``dreams-<environment>.png``. In ``--list`` what is not chosen yet is ``?``; the script runs its
commands with OMP_NUM_THREADS=1 and LOKY_MAX_CPU_COUNT=1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison_data import KINDS, SOURCES, config_of, record, recorded
from comparison_measures import Folders, budget, dreams, measure
from comparison_rows import DATA, DREAMT, EVERY, FULL, PAPER, RATES, ROWS, TINY, WORDS, Row, Size
from comparison_stages import Diverged, execute, train

from worldmodels.agents.model_files import load_dynamics, load_encoder
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import EXIT_STOPPED, ConfigError, Stopped
from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.pictures import save_picture
from worldmodels.runs.artifacts import Run
from worldmodels.runs.manifests import read_manifest
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.system import interrupts
from worldmodels.workers.jobs import ONE_THREAD

SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Comparison:
    """The rows of an environment.

    Args:
        env: its name.
        data: folder of all runs.
        size: of the comparison.
        given: `settings` of an earlier result, which are then not chosen again.
    """

    env: str
    data: Path
    size: Size
    given: dict[str, Any]

    @property
    def root(self) -> Path:
        """The folder of the runs."""
        return self.data / self.size.folder / self.env

    @property
    def settings_path(self) -> Path:
        """The file of `settings`."""
        return self.root / "settings.json"

    def result(self, row: Row, seed: int) -> Path:
        """The file of the measures of a row."""
        return self.root / "results" / f"{row.name}-{seed}.json"

    def run(self, name: str, seed: int) -> str:
        """The name of a run."""
        return f"{self.size.folder}/{self.env}/{name}-{seed}"

    def words(self, row: Row, seed: int) -> list[str]:
        """The words of every command of a row, epochs, run and stage aside."""
        words = [*self.size.words, *WORDS[self.env], *EVERY]
        models = (f"vae.encoder={row.encoder}", f"rnn.model={row.dynamics}")
        return [*words, *models, f"seed={seed}", f"data={self.data}"]

    def config(self, row: Row, seed: int) -> Config:
        """The configuration that the commands of a row have in common."""
        return config_of([*self.words(row, seed), f"run={self.run(row.name, seed)}"])

    def settings(self) -> dict[str, Any]:
        """Model -> its epochs (see `budget`) and its learning rate, as far as they are known."""
        return self.given or (read_json(self.settings_path) if self.settings_path.exists() else {})

    def keep(self, model: str, chosen: dict[str, Any]) -> None:
        """Write the settings of a model; those that other processes wrote stay."""
        write_json(self.settings_path, self.settings() | {model: chosen})

    def commands(self, row: Row, seed: int) -> list[list[str]]:
        """The stages of a row, in their order."""
        known = self.settings()
        words, run = self.words(row, seed), self.run(row.name, seed)
        own = self._in(run, seed)
        places = {"vae": self._in(self.encoder_run(row, seed), seed), "rnn": own}
        found = []
        for stage, model in row.models.items():
            chosen = [f"{stage}.epochs={known.get(model, {}).get('epochs', '?')}"]
            if stage in row.tuned:
                rate = known.get(model, {}).get("learning_rate", "?")
                chosen.append(f"{stage}.learning_rate={rate}")
            found.append([f"stage={stage}", *places[stage], *chosen])
        runs = {"dream": own}
        if self.env == "carracing":
            agent = self.data / run / "controller" / "agent"
            runs["real"] = [f"run={run}-real", f"base={agent}"]
        for world, where in runs.items():
            line = (*where, f"controller.world={world}", *self.size.steps[world])
            found += [[f"stage={stage}", *line] for stage in ("controller", "evaluate")]
        return [["python", "-m", "worldmodels", *line, *words] for line in found]

    def _in(self, run: str, seed: int) -> list[str]:
        """The words by which a command works in a run, with the episodes of row `paper`."""
        paper = self.run(PAPER.name, seed)
        return [f"run={run}", *([] if run == paper else [f"base={paper}"])]

    def encoder_run(self, row: Row, seed: int) -> str:
        """The run whose encoder a row uses: that of row `paper` where it is the same."""
        return self.run((PAPER if row.encoder == PAPER.encoder else row).name, seed)

    def episodes(self, kind: str, seed: int) -> EpisodeSet:
        """The episodes of one of `KINDS`, recorded if they are not there yet: the run of row
        `paper` has those that are trained on."""
        name = self.run(PAPER.name if kind == DATA else kind, seed)
        run, frames = Run(self.data / name, name=name), self.size.frames[KINDS.index(kind)]
        record(self.config(PAPER, seed), run, kind, frames)
        return recorded(run)

    def choose_epochs(self, row: Row, seed: int, seconds: float) -> None:
        """Measure the models of a row whose epochs are not known."""
        known = self.settings()
        for stage, model in row.models.items():
            if model in known:
                continue
            config, episodes = self.config(row, seed), self.episodes(DATA, seed)
            chosen = budget(config, episodes, stage, seconds, self.size.probe)
            self.keep(model, chosen)
            say(f"{self.env}: {model}: {chosen['epochs']} epochs")

    def choose_rates(self, row: Row) -> None:
        """Train the model of a row that is not the paper's, if its learning rate is not known, with
        each of `RATES` on the episodes of every seed: the least mean of the validation losses
        decides, and the rows take these models over.

        Raises:
            SystemExit: with each of them a loss is not finite.
        """
        known = self.settings()
        for stage, model in row.tuned.items():
            if "learning_rate" in known[model]:
                continue
            losses = {rate: self.try_rate(row, stage, rate) for rate in RATES}
            means = {
                rate: statistics.mean(found) for rate, found in losses.items() if found is not None
            }
            if not means:
                raise SystemExit(f"{self.env}: {model} trains with none of {', '.join(RATES)}")
            best = min(means, key=means.__getitem__)
            for seed in SEEDS:
                own = self.data / self.run(row.name, seed) / stage
                own.parent.mkdir(parents=True, exist_ok=True)
                if not own.exists():
                    self.trial(model, best, seed, stage).rename(own)
            self.keep(model, known[model] | {"learning_rate": best, "losses": losses})
            say(f"{self.env}: {model}: learning rate {best} of {losses}")

    def trial(self, model: str, rate: str, seed: int, stage: str) -> Path:
        """The folder of a model that is trained with one of `RATES`."""
        return self.data / self.run(f"rates/{model}-{rate}", seed) / stage

    def try_rate(self, row: Row, stage: str, rate: str) -> list[float] | None:
        """Train the model of a row with one of `RATES`: its validation loss with each seed; None
        where a loss is not finite."""
        found = []
        for seed in SEEDS:
            try:
                found.append(self.loss(row, stage, rate, seed))
            except Diverged as error:
                say(f"{self.env}: {row.models[stage]}: learning rate {rate} is out: {error}")
                return None
        return found

    def loss(self, row: Row, stage: str, rate: str, seed: int) -> float:
        """Train the model of a row with one of `RATES` and one seed; its validation loss.

        Raises:
            Diverged: a loss is not finite.
        """
        self.episodes(DATA, seed)
        vae, rnn, *_ = self.commands(row, seed)
        if stage == "rnn":
            execute(vae)
        folder = self.trial(row.models[stage], rate, seed, stage)
        replaced = ("run=", f"{stage}.learning_rate=")
        kept = [word for word in (vae if stage == "vae" else rnn) if not word.startswith(replaced)]
        run = folder.parent.relative_to(self.data).as_posix()
        train([*kept, f"run={run}", f"{stage}.learning_rate={rate}"])
        return float(read_manifest(folder)["summary"]["loss"])

    def finish(self, row: Row, seed: int) -> None:
        """Measure a row whose stages are finished."""
        run = self.data / self.run(row.name, seed)
        worlds = {"dream": run, "real": run.with_name(f"{run.name}-real")}
        folders = Folders(
            self.data / self.encoder_run(row, seed) / "vae",
            run / "rnn",
            {world: path for world, path in worlds.items() if path.is_dir()},
        )
        sets = (self.episodes(kind, seed) for kind in KINDS)
        found = measure(folders, self.config(row, seed), *sets)
        named = {"env": self.env, "row": row.name, "seed": seed}
        models = {"encoder_name": row.encoder, "dynamics_name": row.dynamics}
        write_json(self.result(row, seed), {**named, **models, **found, **provenance()})

    def draw(self) -> None:
        """The picture of the first seed whose models are all there, if there is one."""
        for seed in SEEDS:
            paths = [
                self.data / self.run(name, seed) / "rnn" / "rnn.safetensors" for name in DREAMT
            ]
            if all(self.result(row, seed).exists() for row in ROWS if row.name in DREAMT):
                encoder = load_encoder(self.data / self.run("paper", seed) / "vae/vae.safetensors")
                held_out = self.episodes("held-out", seed)
                image, episode = dreams(encoder, [load_dynamics(path) for path in paths], held_out)
                path = self.data / f"dreams-{self.env}.png"
                save_picture(path, image)
                say(f"{path}: {', '.join(DREAMT)}; seed {seed}, episode {episode}")
                return


def collect(comparison: Comparison) -> None:
    """Join the results with those of the same settings that ``model_comparison.json`` has."""
    path = comparison.data / f"{comparison.size.folder}.json"
    before: dict[str, Any] = read_json(path) if path.exists() else {"settings": {}, "rows": []}
    found = (read_json(one) for one in sorted(comparison.root.glob("results/*.json")))
    known = before["settings"].get(comparison.env, {}) | comparison.settings()
    kept = (one for one in before["rows"] if one["env"] != comparison.env or current(one, known))
    rows = {(one["env"], one["row"], one["seed"]): one for one in (*kept, *found)}
    order = [row.name for row in ROWS]
    keys = sorted(rows, key=lambda key: (key[0], order.index(key[1]), key[2]))
    settings = before["settings"] | {comparison.env: known}
    write_json(path, {**provenance(), "settings": settings, "rows": [rows[key] for key in keys]})
    say(f"wrote {path}: {len(rows)} results; python docs/render.py {path} takes it over")


def current(result: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether the models of a result have the epochs and the learning rates of the settings."""
    for part in ("encoder", "dynamics"):
        trained, chosen = result[part], known[result[f"{part}_name"]]
        rate = chosen.get("learning_rate", trained["learning_rate"])
        if (trained["epochs"], trained["learning_rate"]) != (chosen["epochs"], float(rate)):
            return False
    return True


def complete(comparison: Comparison, row: Row, seed: int, seconds: float) -> None:
    """Train and measure a row, if that is not done, and collect its results."""
    if comparison.result(row, seed).exists():
        say(f"{comparison.result(row, seed)}: done before")
    else:
        comparison.episodes(DATA, seed)
        comparison.choose_epochs(row, seed, seconds)
        comparison.choose_rates(row)
        for command in comparison.commands(row, seed):
            execute(command)
        comparison.finish(row, seed)
    collect(comparison)


def earlier_settings(path: Path | None, env: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The settings of an earlier result, by model; none without a file.

    Raises:
        ConfigError: it lacks a model of `rows`, or its learning rate.
    """
    if path is None:
        return {}
    found: dict[str, Any] = read_json(path)["settings"].get(env, {})
    complete = {name for name, chosen in found.items() if "learning_rate" in chosen}
    missing = {
        name
        for row in rows
        for stage, name in row.models.items()
        if name not in (complete if stage in row.tuned else found)
    }
    if missing:
        raise ConfigError(
            f"--settings {path}: has none of {min(missing)} for {env}; leave it out, or name other"
            " rows"
        )
    return found


def main() -> None:
    """Complete the rows that are named, seed by seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [DATA, *(row.name for row in ROWS)]
    parser.add_argument("env", choices=SOURCES)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(names)}; all without")
    parser.add_argument("--seed", type=int, choices=SEEDS, help="one seed; all without")
    parser.add_argument("--seconds", type=float, default=240.0, help="training of each network")
    parser.add_argument("--settings", type=Path, help="an earlier model_comparison.json")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    parser.add_argument("--tiny", action="store_true", help="next to no data: to try the script")
    options = parser.parse_intermixed_args()
    if unknown := sorted(set(options.rows) - set(names)):
        parser.error(f"{unknown[0]}: no such row; choose from {', '.join(names)}")
    wanted = [row for row in ROWS if row.name in (options.rows or names)]
    try:
        given = earlier_settings(options.settings, options.env, wanted)
    except ConfigError as error:
        parser.error(str(error))
    size = TINY if options.tiny else FULL
    comparison = Comparison(options.env, options.data, size, given)
    os.environ.update(ONE_THREAD, LOKY_MAX_CPU_COUNT="1")
    interrupts.install()
    for seed in (options.seed,) if options.seed else SEEDS:
        if options.list:
            flags = [f"--seed={seed}", f"--data={options.data}", *["--tiny"] * options.tiny]
            print(
                shlex.join(["python", "benchmarks/model_comparison.py", options.env, DATA, *flags])
            )
            for command in (line for row in wanted for line in comparison.commands(row, seed)):
                print(shlex.join(command))
            continue
        try:
            if DATA in (options.rows or names):
                for kind in KINDS:
                    comparison.episodes(kind, seed)
            for row in wanted:
                complete(comparison, row, seed, options.seconds)
        except Stopped as stop:
            say(f"stopped by {stop}: the same command continues")
            sys.exit(EXIT_STOPPED)
    if wanted and not options.list:
        comparison.draw()


if __name__ == "__main__":
    main()
