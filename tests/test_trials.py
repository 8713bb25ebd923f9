"""stage=sweep: trials of one stage, chosen by their results."""

import csv
import json
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command import ALONE, FEW_FRAMES, composed, error_line, run

from worldmodels import extras
from worldmodels.config.space import Choices, Range, read_space
from worldmodels.errors import ConfigError
from worldmodels.tuning.study import FAILED, FINISHED, STOPPED, Rules, Study, Trial

SPACE = "{vae.learning_rate: {low: 1e-4, high: 1e-2, log: true}, vae.kl_tolerance: [0, 0.5]}"
BRIEF = ("stage=sweep", "preset=smoke", "run=it", "vae.epochs=3", "sweep.random_trials=2", ALONE)


def swept(folder: Path, *words: str) -> dict[str, Any]:
    """``sweep.json`` of a sweep that the program runs."""
    done = run(folder, *BRIEF, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "it/sweep.json").read_text()))


def chosen(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials without what differs between runs of one seed."""
    return [{**trial, "seconds": 0} for trial in record["trials"]]


@pytest.mark.system
def test_trials_killed_at_any_moment_are_those_of_a_sweep_that_was_not(tmp_path: Path) -> None:
    words = [f"sweep.space={SPACE}", "sweep.trials=4"]
    whole = swept(tmp_path / "whole", *words)
    for write in (9, 14):
        done = run(tmp_path / "killed", *BRIEF, *words, kill_at_write=write)
        assert done.returncode == -9, done.stdout + done.stderr
    resumed = swept(tmp_path / "killed", *words)
    assert chosen(resumed) == chosen(whole)
    assert [trial["number"] for trial in whole["trials"]] == [1, 2, 3, 4]
    for trial in whole["trials"]:
        folder = tmp_path / "whole/it" / f"trial-{trial['number']:03d}"
        assert not (folder / "rollouts").exists(), "the episodes are those of the sweep"
        manifest = json.loads((folder / "vae/manifest.json").read_text())
        for key, value in trial["values"].items():
            assert manifest["config"][key] == value
        if trial["state"] == FINISHED:
            assert manifest["summary"]["loss"] == pytest.approx(trial["result"])
    # More trials go on where it ended; the table has all of them, and the figure exists.
    more = swept(tmp_path / "whole", f"sweep.space={SPACE}", "sweep.trials=5")
    assert chosen(more)[:4] == chosen(whole)
    rows = list(csv.DictReader((tmp_path / "whole/it/sweep.csv").open()))
    assert [row["state"] for row in rows] == [trial["state"] for trial in more["trials"]]
    best = min(
        (trial for trial in more["trials"] if trial["state"] == FINISHED),
        key=lambda trial: trial["result"],
    )
    assert more["best"] == f"trial-{best['number']:03d}"
    assert (tmp_path / "whole/it/sweep.svg").read_text().startswith("<svg")


@pytest.mark.system
def test_a_trial_that_cannot_be_trained_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    rates = "{vae.learning_rate: [1e-3, 1e5]}"
    words = ["sweep.trials=3", "sweep.random_trials=3", "vae.epochs=1"]
    record = swept(tmp_path, f"sweep.space={rates}", *words)
    for trial in record["trials"]:
        expected = FAILED if trial["values"]["vae.learning_rate"] == 1e5 else FINISHED
        assert trial["state"] == expected
        assert ("lower the learning rate" in trial["reason"]) == (expected == FAILED)
    assert {trial["state"] for trial in record["trials"]} == {FAILED, FINISHED}


TRANSFORMER = ("sweep.target=rnn", "rnn.model=transformer", "sweep.trials=2")


@pytest.mark.parametrize(
    ("space", "words", "impossible", "said"),
    [
        (
            "{rollouts.policy: [uniform, action_noise], rollouts.action_noise: [0, 0.5]}",
            ("rollouts.action_noise=0.5", "sweep.trials=2", "seed=3"),
            {"rollouts.policy": "action_noise", "rollouts.action_noise": 0},
            "rollouts.policy=action_noise: its actions would be constant",
        ),
        (
            "{rnn.hidden_size: {low: 16, high: 24}}",
            (*TRANSFORMER, "rnn.epochs=1", "seed=7"),
            {"rnn.hidden_size": 19},
            "hidden_size=19 is not a multiple of twice the heads=4",
        ),
    ],
    ids=["keys together", "no such model"],
)
def test_values_that_a_command_line_refuses_have_failed_and_the_others_go_on(
    tmp_path: Path, space: str, words: tuple[str, ...], impossible: dict[str, Any], said: str
) -> None:
    brief = (*FEW_FRAMES, "rollouts.episodes=2", "vae.epochs=1", "rnn.baselines=false")
    record = swept(tmp_path, f"sweep.space={space}", *brief, *words)
    for trial in record["trials"]:
        refused = impossible.items() <= trial["values"].items()
        assert trial["state"] == (FAILED if refused else FINISHED)
        assert (said in trial["reason"]) == refused
        assert (tmp_path / f"it/trial-{trial['number']:03d}").exists() != refused
    assert {trial["state"] for trial in record["trials"]} == {FAILED, FINISHED}


def test_a_sweep_of_failed_trials_alone_is_an_error(tmp_path: Path) -> None:
    words = (*TRANSFORMER, *FEW_FRAMES, "vae.epochs=1", "rollouts.episodes=2", "seed=1")
    space = "sweep.space={rnn.hidden_size: {low: 16, high: 24}}"
    line = error_line(run(tmp_path, *BRIEF, *words, space))
    assert "all 2 trials have failed, the last one with: rnn.model=transformer: hidden_size" in line


@pytest.mark.system
def test_a_search_in_the_environment_is_tuned_on_the_selection_seeds(tmp_path: Path) -> None:
    words = ["sweep.target=controller", "sweep.trials=3", "controller.generations=4"]
    record = swept(tmp_path, "sweep.space={controller.sigma: {low: 0.1, high: 2.0}}", *words)
    assert record["metric"] == "selection/mean"
    assert not list((tmp_path / "it").glob("trial-*/evaluate"))
    for trial in record["trials"]:
        assert trial["result"] == max(trial["reports"].values())
    results = {f"trial-{one['number']:03d}": one["result"] for one in record["trials"]}
    assert results[record["best"]] == max(results.values())


@pytest.mark.system
def test_a_trial_with_the_values_of_the_base_is_trained_and_not_taken_from_it(copy: Path) -> None:
    words = ("stage=sweep", "preset=smoke", "run=it", "base=smoke", "sweep.random_trials=2", ALONE)
    done = run(copy, *words, "sweep.space={vae.kl_tolerance: [0.5, 0.25]}", "sweep.trials=2")
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads((copy / "it/sweep.json").read_text())["trials"]
    base = json.loads((copy / "smoke/vae/manifest.json").read_text())
    equal = [trial for trial in trials if trial["values"]["vae.kl_tolerance"] == 0.5]
    assert equal
    for trial in equal:
        made = json.loads((copy / f"it/trial-{trial['number']:03d}/vae/manifest.json").read_text())
        assert made["fingerprint"] == base["fingerprint"]
        assert trial["result"] == pytest.approx(base["summary"]["loss"])


# --- how values are chosen


def read_again(study: Study) -> list[Trial]:
    """Its trials as a file has them."""
    return [Trial.read(json.loads(json.dumps(trial.record()))) for trial in study.trials]


def study(trials: int, early_stopping: bool = True) -> Study:
    """A study of trials whose metric falls by one in each of five epochs, to a minimum at 3."""
    space = read_space({"vae.learning_rate": {"low": 0.0, "high": 10.0}, "vae.epochs": [1, 2]})
    found = Study(space, Rules(False, 4, early_stopping, seed=7))
    while found.ended < trials:
        trial = found.begin()
        # Every trial is that of a study which is read from its records.
        again = Study(space, Rules(False, 4, early_stopping, seed=7), read_again(found))
        assert again.begin().values == trial.values
        for epoch in range(5):
            value = (trial.values["vae.learning_rate"] - 3) ** 2 + 5 - epoch
            stop = found.report(epoch, value)
            assert again.report(epoch, value) == stop
            # Killed here, it repeats the step and decides the same.
            resumed = Study(space, Rules(False, 4, early_stopping, seed=7), read_again(found))
            assert resumed.begin().values == trial.values
            assert resumed.report(epoch, value) == stop
            if stop:
                assert early_stopping
                trial.state = STOPPED
                break
        else:
            trial.state = FINISHED
    return found


def test_a_trial_stops_where_it_is_worse_than_the_median_before_it() -> None:
    found = study(30)
    states = [trial.state for trial in found.trials]
    assert states[:4] == [FINISHED] * 4
    assert states.count(STOPPED) > 3
    for number, trial in enumerate(found.trials):
        before = [one for one in found.trials[:number] if one.state == FINISHED]
        values = list(trial.reports.values())
        for epoch in range(len(values)):
            others = [list(one.reports.values())[epoch] for one in before or [trial]]
            best = min(values[: epoch + 1])
            worse = len(before) >= 4 and best > statistics.median(others)
            assert worse == (trial.state == STOPPED and epoch == len(values) - 1)


def test_later_trials_are_nearer_to_the_best_values_and_the_key_that_matters_is_named() -> None:
    found = study(40, early_stopping=False)
    distances = [abs(trial.values["vae.learning_rate"] - 3) for trial in found.trials]
    assert statistics.mean(distances[20:]) < 0.5 * statistics.mean(distances[:4])
    assert distances[found.ranked()[0].number - 1] == min(distances)
    shares = found.importances()
    assert shares["vae.learning_rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_importances_are_computed_when_a_trial_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    found, computed = study(10, early_stopping=False), list[int]()

    def importances(over: Any, **_: Any) -> dict[str, float]:
        computed.append(len(over.trials))
        return {"vae.epochs": float(len(over.trials))}

    monkeypatch.setattr("worldmodels.tuning.study.get_param_importances", importances)
    trial = found.begin()
    for epoch in range(5):
        found.report(epoch, 1.0)
        assert found.importances() == {"vae.epochs": 10.0}
    trial.state = FINISHED
    assert found.importances() == {"vae.epochs": 11.0}
    assert computed == [10, 11]


def test_whole_numbers_stay_whole() -> None:
    space = read_space({"vae.batch_size": {"low": 8, "high": 64, "log": True}, "seed": [1, 2]})
    assert space == {"vae.batch_size": Range(8, 64, log=True), "seed": Choices((1, 2))}
    values = Study(space, Rules(True, 1, False, seed=1)).begin().values
    assert isinstance(values["vae.batch_size"], int)
    assert 8 <= values["vae.batch_size"] <= 64


# --- what it refuses, and its cost


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("{}", "sweep.space={}: give keys with their values"),
        ("{run: [a, b]}", "sweep.space: run: give seed, or keys of env, rollouts"),
        ("{vae.learning: [1, 2]}", "vae.learning: no such key, perhaps vae.learning_rate"),
        ("{vae.latent_size: [0, 8]}", "sweep.space: vae.latent_size=0: vae.latent_size=0: choose"),
        ("{controller.sigma: [0.1, 0.2]}", "controller.sigma: has no effect on stage=vae; leave"),
        ("{vae.epochs: [1]}", "sweep.space: vae.epochs: give two different values or more"),
        ("{vae.epochs: [1, [2]]}", "sweep.space: vae.epochs: give two different values or more"),
        ("{vae.epochs: 3}", "sweep.space: vae.epochs: give a list of values, or {low: 1, high: 8"),
        ("{vae.epochs: {low: 3, high: 1}}", "sweep.space: vae.epochs: give numbers low < high"),
        ("{vae.kl_tolerance: {low: 0, high: 1, log: true}}", "log=true needs low > 0"),
        ("{vae.encoder: [conv_vae, nothing]}", "vae.encoder=nothing"),
    ],
)
def test_a_space_that_cannot_be_searched_is_one_line(tmp_path: Path, space: str, said: str) -> None:
    assert said in error_line(run(tmp_path, *BRIEF, f"sweep.space={space}"))
    assert not (tmp_path / "it").exists()


GRADIENTS = (
    *("sweep.target=controller", "controller.optimizer=actor_critic", "controller.world=dream"),
    *("controller.latent=sampled", "rnn.latent=sampled", "controller.pca_components=null"),
)


def test_a_sweep_of_gradients_needs_a_metric_and_keys_of_its_stage(tmp_path: Path) -> None:
    words = [*GRADIENTS, "sweep.space={actor_critic.horizon: [2, 3]}"]
    line = error_line(run(tmp_path, *BRIEF, *words))
    assert "controller.optimizer=actor_critic plays no selection seeds; give sweep.metric=" in line
    for target in ("vae", "controller", "baseline"):  # with CMA-ES
        line = error_line(run(tmp_path, *BRIEF, f"sweep.target={target}", words[-1]))
        assert f"actor_critic.horizon: has no effect on stage={target}; leave it out" in line
        assert line.endswith("sweep.target=controller controller.optimizer=actor_critic")


@pytest.mark.system
def test_a_sweep_of_gradients_is_chosen_by_its_metric_and_has_its_settings(tmp_path: Path) -> None:
    brief = ("actor_critic.updates=3", "actor_critic.batch_size=4", "sweep.trials=2")
    words = [*GRADIENTS, *brief, "sweep.metric=validation/return"]
    words += ["sweep.space={actor_critic.horizon: [2, 3]}", "vae.epochs=1"]
    record = swept(tmp_path, *words)
    assert [trial["state"] for trial in record["trials"]] == [FINISHED] * 2
    for trial in record["trials"]:
        folder = tmp_path / "it" / f"trial-{trial['number']:03d}"
        manifest = json.loads((folder / "controller/manifest.json").read_text())
        assert manifest["config"].items() >= trial["values"].items()
        assert manifest["summary"]["return"] == pytest.approx(trial["result"])
    line = error_line(run(tmp_path, *BRIEF, *words, "actor_critic.learning_rate=1e-3"))
    assert "actor_critic.learning_rate=0.0003, now 0.001; choose another run=" in line


@pytest.mark.system
def test_what_does_not_fit_the_sweep_is_one_line(tmp_path: Path) -> None:
    words = ["sweep.space={vae.epochs: [1, 2]}", "sweep.trials=1"]
    line = error_line(run(tmp_path, *BRIEF, *words, "sweep.metric=validation/accuracy"))
    assert "sweep.metric=validation/accuracy: stage=vae has no such metric" in line
    assert "validation/loss" in line
    line = error_line(run(tmp_path, *BRIEF, *words))
    assert "sweep.metric=validation/accuracy, now null; choose another run=" in line
    path = tmp_path / "it/sweep.json"
    path.write_text(json.dumps({"settings": {}, "trials": [{"number": 1}]}))
    assert "is not the record of a sweep (KeyError" in error_line(run(tmp_path, *BRIEF, *words))
    record = swept(tmp_path, *words, "overwrite=true")
    assert [trial["state"] for trial in record["trials"]] == [FINISHED]


@pytest.mark.system
def test_its_cost_is_planned(tmp_path: Path) -> None:
    words = ["stage=plan", "preset=smoke", "run=it", ALONE]
    done = run(tmp_path, *words, "sweep.space={vae.kl_tolerance: [0, 1]}", "sweep.trials=50")
    assert done.returncode == 0, done.stderr
    stages = json.loads((tmp_path / "it/plan.json").read_text())["stages"]
    assert [*stages] == ["start", "rollouts", "50 trials"]
    assert stages["50 trials"]["at_most"]
    line = error_line(run(tmp_path, *words, "sweep.space={seed: [1, 2]}", "sweep.target=baseline"))
    assert "stage=plan does not estimate baselines" in line


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name == "optuna" else find_spec(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'worldmodels-gym\[sweep\]'"):
        extras.check(composed("stage=sweep", "sweep.space={vae.epochs: [1, 2]}"))
