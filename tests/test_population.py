"""stage=sweep sweep.method=population: learning rates by population-based training."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ALONE, error_line, run

from worldmodels.config.space import Range
from worldmodels.errors import TrainingError
from worldmodels.files import weights
from worldmodels.tuning.population import Interval, Population, ends

RATES = "sweep.space={vae.learning_rate: {low: 1e-4, high: 1e-2, log: true}}"
WORDS = (
    *("stage=sweep", "preset=smoke", "run=it", ALONE, "sweep.method=population"),
    *("sweep.members=4", "vae.epochs=2", "vae.batch_size=64", "rollouts.max_steps=12"),
)


def swept(folder: Path, *words: str, space: str = RATES) -> dict[str, Any]:
    """``sweep.json`` of a population that the program trains."""
    done = run(folder, *WORDS, space, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "it/sweep.json").read_text()))


def trained(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The intervals without what differs between runs of one seed."""
    return [{**one, "seconds": 0} for one in record["intervals"]]


@pytest.mark.system
def test_a_population_killed_where_it_writes_is_that_of_one_that_was_not(tmp_path: Path) -> None:
    whole = swept(tmp_path / "whole")
    for write in (12, 40):
        words = (*WORDS, RATES)
        done = run(tmp_path / "killed", *words, kill_at_write=write)
        assert done.returncode == -9, done.stdout + done.stderr
    assert trained(swept(tmp_path / "killed")) == trained(whole)

    intervals = whole["intervals"]
    order = [(one["number"], one["member"]) for one in intervals]
    assert order == [(number, member) for number in (1, 2) for member in (1, 2, 3, 4)]
    first, second = intervals[:4], intervals[4:]
    rates = [one["rate"] for one in first]
    assert len(set(rates)) == 4
    assert all(1e-4 < rate < 1e-2 for rate in rates)
    # The worst of four goes on from the best, at another rate; the others go on as they were.
    results = [one["result"] for one in first]
    best, worst = int(np.argmin(results)), int(np.argmax(results))
    for place, one in enumerate(second):
        parent = best if place == worst else place
        assert one["parent"] == parent + 1
        factor = one["rate"] / first[parent]["rate"]
        assert any(np.isclose(factor, (0.8, 1.25) if place == worst else (1.0,)))
    last = int(np.argmin([one["result"] for one in second]))
    assert whole["best"] == f"interval-002/member-00{last + 1}"

    root = tmp_path / "whole/it"
    assert {path.name for path in root.glob("interval-*")} <= {"interval-001", "interval-002"}
    for one in second:
        folder = root / f"interval-002/member-00{one['member']}/vae"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["config"]["vae.learning_rate"] == one["rate"]
        assert manifest["config"]["vae.epochs"] == 2
        assert manifest["summary"]["loss"] == pytest.approx(one["result"])
        # Steps and moments of the optimiser are those of two epochs.
        state = weights.load(folder / "checkpoint.safetensors")
        steps = {float(part["step"]) for part in state["optimizer"]["state"].values()}
        assert steps == {float(state["step"])}
        assert state["epoch"] == 2
    rows = list(csv.DictReader((root / "sweep.csv").open()))
    assert [float(row["validation/loss"]) for row in rows] == [o["result"] for o in intervals]
    assert (root / "sweep.svg").read_text().startswith("<svg")
    line = error_line(run(tmp_path / "whole", *WORDS, RATES, "sweep.members=5"))
    assert "a sweep with sweep.members=4, now 5; choose another run=" in line


@pytest.mark.system
def test_an_interval_goes_on_as_training_without_a_pause(tmp_path: Path) -> None:
    record = swept(tmp_path)
    first, second = record["intervals"][:4], record["intervals"][4:]
    kept = next(one for one in second if one["parent"] == one["member"])
    rate = first[kept["member"] - 1]["rate"]
    rates = (f"vae.learning_rate={rate}", f"vae.final_learning_rate={rate}")
    words = [word for word in WORDS[1:] if not word.startswith(("sweep", "run"))]
    done = run(tmp_path, "stage=vae", "run=whole", "base=it", *words, *rates)
    assert done.returncode == 0, done.stdout + done.stderr
    part = tmp_path / f"it/interval-002/member-00{kept['member']}/vae"
    states = [
        weights.load(folder / "checkpoint.safetensors") for folder in (part, tmp_path / "whole/vae")
    ]
    for name in ("module", "optimizer"):
        assert weights.digest(states[0][name]) == weights.digest(states[1][name])
    # A member as base: it has the model alone, its population has the episodes.
    best = f"base=it/{record['best']}"
    done = run(tmp_path, "stage=rnn", "run=next", *words, best, "rnn.baselines=false")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.system
def test_the_dynamics_model_is_trained_by_a_population(tmp_path: Path) -> None:
    space = "sweep.space={rnn.learning_rate: {low: 1e-3, high: 1e-2}}"
    words = ("sweep.target=rnn", "rnn.epochs=3", "sweep.interval=2")
    record = swept(tmp_path, *words, space=space)
    assert record["metric"] == "validation/nll"
    assert [one["number"] for one in record["intervals"]] == [1] * 4 + [2] * 4
    root = tmp_path / "it" / record["best"] / "rnn"
    manifest = json.loads((root / "manifest.json").read_text())
    assert manifest["config"]["rnn.epochs"] == 3
    assert (root / "single_gaussian/checkpoint.safetensors").exists()


@pytest.mark.system
def test_its_cost_is_planned(tmp_path: Path) -> None:
    words = ("stage=plan", *WORDS[1:], RATES, "vae.epochs=5", "sweep.interval=2")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    stages = json.loads((tmp_path / "it/plan.json").read_text())["stages"]
    assert [*stages] == ["start", "rollouts", "4 members, 3 intervals"]
    assert stages["4 members, 3 intervals"]["wall_s"] > 0


def test_the_weights_before_a_last_interval_that_failed_are_kept(tmp_path: Path) -> None:
    words = ("sweep.space={vae.learning_rate: {low: 1e5, high: 1e6}}", "rollouts.episodes=2")
    line = error_line(run(tmp_path, *WORDS, *words))
    assert "interval 1: the training of all 4 members has failed" in line
    # As if those rates had been good ones in the first interval, and bad ones in the second.
    path = tmp_path / "it/sweep.json"
    record = json.loads(path.read_text())
    first = [{**one, "result": 1.0} for one in record["intervals"]]
    last = [{**one, "number": 2, "parent": one["member"]} for one in record["intervals"]]
    path.write_text(json.dumps(record | {"intervals": [*first, *last]}))
    weights = tmp_path / "it/interval-001/member-001/vae/vae.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.touch()
    line = error_line(run(tmp_path, *WORDS, *words))
    assert "it: the training of all 4 members has failed; give lower learning rates" in line
    assert weights.exists()


# --- who goes on from whom


def trained_by(population: Population, result: Any) -> list[Interval]:
    """The intervals of a population whose results are a function of interval and member."""
    while (one := population.next()) is not None:
        # What is next depends on what was done alone.
        arguments = (RANGE, population.members, population.intervals, 5, population.done)
        assert Population(*arguments).next() == one
        record = json.loads(json.dumps(one.record())) | {"result": result(one)}
        population.done.append(Interval.read(record))
    return population.done


RANGE = Range(1e-4, 1e-2, log=True)


def test_the_worst_quarter_copies_the_best_and_changes_its_rate() -> None:
    scores = {member: (member * 7) % 12 for member in range(1, 13)}  # a permutation of 0 to 11
    done = trained_by(Population(RANGE, 12, 40, 5), lambda one: float(scores[one.member]))
    best = {member for member, score in scores.items() if score < 3}
    worst = {member for member, score in scores.items() if score >= 9}
    before = {one.member: one for one in done[:12]}
    factors, parents = Counter[float](), Counter[int]()
    for one in done[12:]:
        assert one.parent is not None
        factor = one.rate / before[one.parent].rate
        if one.member in worst:
            assert one.parent in best
            factors[round(factor, 9)] += 1
            parents[one.parent] += 1
        else:
            assert (one.parent, factor) == (one.member, 1.0)
        if one.member == 12:
            before = {other.member: other for other in done if other.number == one.number}
    assert factors.keys() == {0.8, 1.25}
    assert min(factors.values()) > 40  # of 117
    assert parents.keys() == best
    assert min(parents.values()) > 20
    logs = np.log([Population(RANGE, 4, 2, seed).next().rate for seed in range(400)])  # type: ignore[union-attr]
    assert np.log(1e-4) < logs.min() < logs.max() < np.log(1e-2)
    assert logs.mean() == pytest.approx(np.log(1e-3), abs=0.2)


def test_a_member_that_failed_goes_on_from_the_best_and_a_lineage_leads_back() -> None:
    failed = {(1, 2), (1, 3), (2, 4)}
    population = Population(RANGE, 4, 3, 5)
    done = trained_by(
        population,
        lambda one: None if (one.number, one.member) in failed else float(one.member),
    )
    assert [one.parent for one in done[4:8]] == [1, 1, 1, 4]
    assert [one.parent for one in done[8:]] == [1, 2, 3, 1]
    assert population.best() == done[8]
    assert population.lineage(done[9]) == [done[0], done[5], done[9]]
    with pytest.raises(TrainingError, match="interval 1: the training of all 4 members has failed"):
        trained_by(Population(RANGE, 4, 3, 5), lambda one: None)


def test_the_last_interval_may_be_shorter() -> None:
    assert ends(10, 5) == [5, 10]
    assert ends(10, 4) == [4, 8, 10]


# --- what it refuses


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sweep.target=controller", "sweep.target=controller has no epochs; give vae or rnn"),
        (
            "sweep.space={vae.batch_size: [8, 16]}",
            "vae.batch_size cannot change while a model is trained; give vae.learning_rate alone",
        ),
        (
            "sweep.space={vae.learning_rate: [1e-3, 1e-2]}",
            "give vae.learning_rate as {low: 1e-4",
        ),
        ("sweep.interval=2", "sweep.interval=2: with vae.epochs=2 no weights are copied"),
        ("sweep.members=3", "sweep.members=3: choose 4 to 256"),
        ("sweep.space={}", "sweep.space={}: give keys with their values"),
    ],
)
def test_what_cannot_be_trained_so_is_one_line(tmp_path: Path, word: str, said: str) -> None:
    words = (word,) if word.startswith("sweep.space") else (RATES, word)
    assert said in error_line(run(tmp_path, *WORDS, *words))
    assert not (tmp_path / "it").exists()
