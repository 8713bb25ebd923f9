"""The tables of the pages, in Markdown, each from the JSON that a run or a benchmark wrote."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from worldmodels.reporting.learning import Point
from worldmodels.reporting.scores import (
    AGENT_IN_DREAM,
    PAPER_SCORES,
    SCORE_HEADER,
    Score,
    score_rows,
    summarise,
)


class PaperScores(NamedTuple):
    """Published mean and standard deviation of an agent, in the dream and in the environment."""

    dream: tuple[int, int]
    environment: tuple[int, int]


PAPER_TEMPERATURES = {
    0.1: PaperScores((2086, 140), (193, 58)),
    0.5: PaperScores((2060, 277), (196, 50)),
    1.0: PaperScores((1145, 690), (868, 511)),
    1.15: PaperScores((918, 546), (1092, 556)),
    1.3: PaperScores((732, 269), (753, 139)),
}
"""Temperature of the training -> scores in Take Cover: Ha & Schmidhuber 2018, table 2."""


def studies(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Table -> a row for each variant: its scores, seed by seed and together."""
    return {
        table: _study([run for run in runs if run["table"] == table])
        for table in dict.fromkeys(run["table"] for run in runs)
    }


def _study(runs: list[dict[str, Any]]) -> str:
    rows = []
    published = any(run["table"].startswith("temperatures") for run in runs)
    dreamt = any(run["world"] == "dream" for run in runs)
    likely = len({run["nll"] for run in runs}) > 1
    for name in dict.fromkeys(run["name"] for run in runs):
        same = [run for run in runs if run["name"] == name]
        games = [np.array(run["returns"]["game"]) for run in same]
        both = summarise(name, np.concatenate(games), range(sum(map(len, games))))
        row = [same[0]["what"], f"**{both.mean:.0f}** ± {both.std:.0f}"]
        row.append(f"{both.interval[0]:.0f} to {both.interval[1]:.0f}")
        row.append(", ".join(f"{round(game.mean())}" for game in games))
        if dreamt:
            row.append(", ".join(f"{np.mean(run['returns']['dream']):.0f}" for run in same))
        if published:
            row += _of_paper(name)
        if likely:
            row.append(", ".join("–" if r["nll"] is None else f"{r['nll']:.4f}" for r in same))
        row.append(" ".join(f"`{word}`" for word in same[0]["overrides"]) or "–")
        rows.append(row)
    header = ["", "score", "95 % interval", "seed by seed"]
    header += ["in the dream"] * dreamt
    header += ["paper: real environment", "paper: dream"] * published
    header += ["MDN-RNN, nats per dimension"] * likely + ["overrides"]
    return markdown_table(header, rows)


def _of_paper(name: str) -> tuple[str, str]:
    """The paper's scores in the environment and in the dream, at the temperature of a row."""
    for temperature, paper in PAPER_TEMPERATURES.items():
        if name == f"tau-{temperature}":
            environment, dream = (f"{m} ± {s}" for m, s in (paper.environment, paper.dream))
            return environment, dream
    return "–", "–"


def maker(run: dict[str, Any]) -> str:
    """What made a run: hardware, versions, commits."""
    manifests = run["stages"].values()
    makers = {
        f"{m['machine']}, Python {m['python']}, "
        + ", ".join(f"{name} {version}" for name, version in m["versions"].items())
        for m in manifests
    }
    commits = ", ".join(sorted({str(m["commit"]) for m in manifests}))
    return "".join(f"{maker}; commit {commits}.\n" for maker in sorted(makers))


def wall_s(run: dict[str, Any]) -> float:
    """Seconds of all stages; of all rounds, where the run has rounds."""
    return float(run.get("wall_s", sum(m["wall_s"] for m in run["stages"].values())))


def score_of(name: str, record: dict[str, Any]) -> Score:
    """The score whose `Score.record` this is."""
    lists = {key: tuple(record[key]) for key in ("returns", "seeds", "interval")}
    return Score(name=name, **{**record, **lists})


def scores(run: dict[str, Any]) -> str:
    """A run's policies, and the paper's."""
    env = run["stages"]["evaluate"]["config"]["env.id"]
    policies = [score_of(name, record) for name, record in run["scores"].items()]
    return markdown_table(SCORE_HEADER, score_rows(policies, PAPER_SCORES.get(env, [])))


def headline(agents: dict[str, list[dict[str, Any]]], log: Point) -> str:
    """Agents by name, and below those of the preset ``laptop`` the paper's.

    The steps are those of controller training in steps of the simulator, bootstrap run and rounds
    included: ``env.frame_skip`` for each of the controller, in the learned model too. The hours are
    of all stages.

    Args:
        agents: name -> runs that differ in the training seed; a row is of the first of them.
        log: the end of the paper's own learning curve.
    """
    hours = f"{log.seconds / 3600:,.0f}, controller only"
    theirs = {"CarRacing-v3": (f"{log.steps / 1e6:,.0f} M", hours, "64 processes")}
    rows = []
    for name, runs in agents.items():
        run, seeds = runs[0], f"{over_seeds(runs, 0)} ({len(runs)})"
        agent = score_of("agent", run["scores"]["agent"])
        searches = [run["stages"].get(f"{part}controller") for part in ("bootstrap/", "")]
        steps = run.get("steps", sum(found["summary"]["steps"] for found in searches if found))
        machine = run["stages"]["controller"]["machine"].split(", ")
        score, played = f"**{agent.mean:.0f}** ± {agent.std:.0f}", str(len(agent.returns))
        spent, hardware = f"{wall_s(run) / 3600:.1f}", f"CPU, {machine[-1]}"
        skip = run["stages"]["rollouts"]["config"].get("env.frame_skip", 1)
        training = f"{skip * steps / 1e6:.1f} M"
        rows.append((name, score, played, seeds, training, spent, hardware))
        env = run["stages"]["evaluate"]["config"]["env.id"]
        if "preset=laptop" in name:
            paper = PAPER_SCORES[env][0]
            score = f"{paper.mean:.0f} ± {paper.std:.0f}"
            rest = theirs.get(env, ("–", "–", "–"))
            rows.append((paper.name, score, paper.note.split(" trials")[0], "–", *rest))
    header = ("", "score", "episodes", "over seeds", "training steps", "hours", "hardware")
    return markdown_table(header, rows)


def over_seeds(runs: Sequence[dict[str, Any]], digits: int) -> str:
    """Mean and standard deviation of the mean scores of runs that differ in the training seed."""
    means = [run["scores"]["agent"]["mean"] for run in runs]
    return f"{statistics.mean(means):.{digits}f} ± {statistics.stdev(means):.{digits}f}"


def data_sources(runs: dict[str, dict[str, Any]]) -> str:
    """Agents of several sets of episodes: scores in the real environment and in the dream."""
    rows = []
    for what, run in runs.items():
        in_real = score_of(what, run["scores"]["agent"])
        in_dream = score_of(what, run["scores"][AGENT_IN_DREAM])
        row = [what, f"**{in_real.mean:.1f}** ± {in_real.std:.1f}"]
        row.append(f"{in_real.interval[0]:.1f} to {in_real.interval[1]:.1f}")
        row.append(f"{in_dream.mean:.0f} ± {in_dream.std:.0f}")
        rows.append([*row, str(run["stages"]["evaluate"]["commit"])[:7]])
    header = ("data of the VAE and MDN-RNN", "score", "95 % interval", "in the dream", "commit")
    return markdown_table(header, rows)


def likelihood(run: dict[str, Any]) -> str:
    """A run's MDN-RNN beside its baselines."""
    nll = run["stages"]["rnn"]["summary"]["validation_nll"]
    rows = [
        ("MDN-RNN", f"{nll['mdn_rnn']:.4f}"),
        ("single Gaussian", f"{nll['single_gaussian']:.4f}"),
        ("Gaussian around the last latent", f"{nll['copy_last']:.4f}"),
    ]
    return markdown_table(("model", "validation loss, nats per dimension"), rows)


def stages(run: dict[str, Any]) -> str:
    """What a run's stages took."""
    rows = []
    for stage, manifest in run["stages"].items():
        rates = ", ".join(f"{value:,.0f} {unit}" for unit, value in manifest["throughput"].items())
        peak = max(manifest["resources"]["peak_bytes"].values()) / 1e9
        rows.append((stage, f"{manifest['wall_s']:,.0f} s", f"{peak:.1f} GB", rates))
    rows.append(("all", f"{wall_s(run) / 60:.1f} min", "", ""))
    return markdown_table(("stage", "wall time", "peak memory", "throughput"), rows)


def throughput(bench: dict[str, Any]) -> str:
    """``benchmarks/throughput.py``: each part beside the plain loop."""
    rows = []
    for figure in bench["figures"]:
        peak = f"{figure['plain_peak_bytes'] / 1e9:.1f} / {figure['peak_bytes'] / 1e9:.1f} GB"
        by = " a core" if figure["plain_cores"] == 1 and bench["cores"] > 1 else ""
        rows.append(
            (
                figure["what"],
                f"{figure['plain']:,.0f}",
                f"{figure['ours']:,.0f} {figure['unit']}",
                f"× {figure['ratio']:.1f}{by}",
                peak,
            )
        )
    header = (
        "",
        "plain loop",
        f"here, {bench['cores']} cores",
        "ratio",
        "peak memory of a process",
    )
    return markdown_table(header, rows)


def sharing(record: dict[str, Any]) -> str:
    """``benchmarks/sharing.py``: training beside busy processes."""
    quiet = {
        (figure["what"], setting): statistics.median(turns)
        for figure in record["figures"]
        if figure["busy"] == 0
        for setting, turns in figure["turns"].items()
    }
    rows = []
    for figure in record["figures"]:
        row = [figure["what"], str(figure["busy"])]
        for setting, turns in figure["turns"].items():
            rate = statistics.median(turns)
            row.append(f"{rate:,.0f} ({rate / quiet[figure['what'], setting]:.0%})")
        rows.append(row)
    return markdown_table(("", "busy processes", *record["figures"][0]["turns"]), rows)


def mirror(record: dict[str, Any]) -> str:
    """``benchmarks/mirror.py``: the processor time of copying."""
    rows = [
        (
            what,
            f"{figure['cpu_s'] / figure['seconds']:.1%} of a core",
            f"{figure['start_cpu_s']:.1f} s",
            f"{figure['end_s']:.1f} s",
        )
        for what, figure in record["figures"].items()
    ]
    size, every = record["checkpoint_bytes"] / 1e6, record["every_s"]
    return markdown_table(
        ("store", "processor time while a stage runs", "at the start", "end"), rows
    ) + (
        f"\nA checkpoint of {size:.0f} MB every {every} s, and a line of a log every second"
        " (`benchmarks/mirror.py`, single measurement on a busy machine). The copying process is"
        " another than the stage's: what it uses of a core is the most that it can take from a"
        " stage. End: how long the command waited for the last changes.\n"
    )


def parity(record: dict[str, Any]) -> str:
    """``benchmarks/carracing_parity.py``: how far the two simulators agree."""
    tracks, dynamics, seen = record["tracks"], record["dynamics"], record["pictures"]
    rows = [
        (
            "tracks",
            f"{tracks['seeds']:,} seeds",
            f"largest error of a corner {tracks['largest_error']:g}",
        ),
        (
            "dynamics",
            f"{dynamics['episodes']} episodes by four drivers, {dynamics['steps']:,} steps,"
            f" {dynamics['terminated']} terminated",
            f"same rewards, tiles and ends in {dynamics['equal_events']}, every bit of the bodies"
            f" in {dynamics['equal_bits']}",
        ),
        (
            "pictures",
            f"{seen['frames']} frames",
            f"{seen['road_mean']:.2f} grey levels over the road view ({seen['road_worst']:.2f} in"
            f" the worst), {seen['bar_mean']:.2f} over the instruments",
        ),
    ]
    for one in record["scores"]:
        low, high = one["interval"]
        rows.append(
            (
                f"score of an agent at {one['gymnasium']:.0f}",
                f"{one['episodes']} episodes",
                f"{one['gymnasium']:.1f} in Gymnasium, {one['native']:.1f} here; 95 % interval of"
                f" the difference {low:.1f} to {high:.1f}",
            )
        )
    return markdown_table(("", "compared", "result"), rows)


def wheel(record: dict[str, Any]) -> str:
    """``benchmarks/wheel.py``: reward with fixed full steering, real and predicted."""
    ways = list(record["rows"][0]["rewards"])
    rows = [
        ["real environment" if row["what"] == "the game" else f"MDN-RNN of `{row['what']}`"]
        + [f"{row['rewards'][way]:.2f}" for way in ways]
        for row in record["rows"]
    ]
    return markdown_table(["reward per step", *ways], rows)


def engines(record: dict[str, Any]) -> str:
    """``benchmarks/takecover_engines.py``: ViZDoom's Take Cover and EnvPool's."""
    rows = []
    for name, what in (("vizdoom", "ViZDoom"), ("envpool", "EnvPool")):
        played = record[name]
        survived = f"{played['mean_length']:.1f} ± {played['std_length']:.1f}"
        rows.append((what, survived, f"{played['mean_return']:.1f}", f"{played['steps/s']:,.0f}"))
    return markdown_table(("", "steps survived", "return", "steps/s"), rows) + (
        f"\n{record['episodes']} episodes each; {record['same_length']} of equal length in both."
        " Kolmogorov-Smirnov test that the lengths have the same distribution:"
        f" p = {record['ks_pvalue']:.2f}.\n"
    )


def speed(record: dict[str, Any]) -> str:
    """``benchmarks/carracing_speed.py``: steps a second of each engine."""
    figures = record["figures"]
    alone = {f["what"]: f["steps_s"] for f in figures if f["threads"] == 1 and f["num_envs"] <= 16}
    rows = []
    for figure in figures:
        each = figure["steps_s"] / figure["threads"]
        rows.append(
            (
                figure["what"],
                str(figure["num_envs"]),
                str(figure["threads"]),
                f"{figure['steps_s']:,.0f}",
                f"× {each / alone['Gymnasium']:.0f}",
                f"× {each / alone['EnvPool']:.1f}",
            )
        )
    header = ["engine", "environments", "threads", "steps/s"]
    header += ["a core, to Gymnasium", "a core, to EnvPool"]
    fastest = max(
        f["steps_s"] for f in figures if f["what"] == "native 64x64" and f["threads"] == 1
    )
    share = fastest * 64 * 64 * 3 / record["bandwidth"]
    return markdown_table(header, rows) + (
        f"\nOne core writes {record['bandwidth'] / 1e9:.1f} GB/s to memory here; writing the 64x64"
        f" frames is {share:.1%} of that at most.\n"
    )


def hostile(record: dict[str, Any]) -> str:
    """``benchmarks/hostile/run.py``: the cases of each topic, and how many held."""
    rows = []
    for row in record["topics"]:
        rows.append(
            (f"`{row['topic']}`", f"{row['tried']:,}", f"{row['tried'] - len(row['failed']):,}")
        )
    return markdown_table(("topic", "tried", "held"), rows) + (
        f"\nCommit {record['commit']}, seed {record['seed']}, {record['kills']} kills,"
        f" {record['seconds'] / 60:.0f} min, cores: {record['cores']}.\n"
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; every row has as many cells as the header."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
