"""Several runs in one report: stage=report compare=[...]."""

import csv
import shutil
from pathlib import Path

import pytest
from command import error_line, run
from pages import headings, rows

from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.learning import Point
from worldmodels.reporting.progress import Progress, draw_progress, progress_of


@pytest.mark.system
def test_several_runs_are_compared(copy: Path) -> None:
    shutil.copytree(copy / "smoke", copy / "<script>")
    done = run(copy, "stage=report", "run=smoke", "preset=smoke", 'compare=["<script>"]')
    assert done.returncode == 0, done.stderr
    page = (copy / "smoke/report/index.html").read_text()
    assert "<script>" not in page
    assert headings(page)[1] == "Comparison of runs"
    header, this, other, *papers = (row.split() for row in rows(page, "Comparison of runs"))
    assert header[0] == "run"
    assert (this[0], other[0]) == ("smoke", "&lt;script&gt;")
    assert this[1:] == other[1:]
    assert this[-1] == "gymnasium"
    assert len(papers) == 3
    folder = copy / "smoke/report/figures"
    with (folder / "comparison-return-of-every-episode-by-run.csv").open(newline="") as file:
        dots = list(csv.DictReader(file))
    scores = read_json(copy / "smoke/evaluate/scores.json")["agent"]
    for name in ("smoke", "<script>"):
        returns = [float(row["return"]) for row in dots if row["run"] == name]
        assert returns == scores["returns"]
    for axis in ("environment-steps", "hours"):
        name = f"comparison-return-over-{axis}-of-all-stages.csv"
        with (folder / name).open(newline="") as file:
            lines = {row["line"] for row in csv.DictReader(file)}
        assert lines == {"smoke", "<script>", "random policy", "mean of CMA-ES, paper"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare=[absent]"], "compare=absent: there is no such run in "),
        (["compare=[other,absent]"], "compare=absent: there is no such run in "),
        (["compare=[smoke]"], "compare=smoke: names a run twice; name each run once"),
        (["compare=[other,other]"], "compare=other: names a run twice; name each run once"),
        (["compare=[../data/other]"], "compare=../data/other: give the name of a folder below"),
        (["compare=[unfinished]"], "unfinished/evaluate is missing: first run"),
        (["compare=[elsewhere]"], "compare=elsewhere: evaluated in Breakout, smoke in CarRacing"),
    ],
)
def test_a_run_that_cannot_be_compared_is_named(
    smoke: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    for name in ("smoke", "other", "elsewhere"):
        (tmp_path / name / "evaluate").mkdir(parents=True)
        record = read_json(smoke / "smoke/evaluate/manifest.json")
        del record["crc32"]
        if name == "elsewhere":
            record["config"]["env.id"] = "Breakout"
        write_json(tmp_path / name / "evaluate/manifest.json", record)
    (tmp_path / "unfinished").mkdir()
    line = error_line(run(tmp_path, "stage=report", "run=smoke", "preset=smoke", *words))
    assert said in line
    assert not (tmp_path / "smoke/report").exists()


def test_a_step_with_a_repeated_action_counts_as_the_simulators_steps(copy: Path) -> None:
    folders = {stage: copy / "smoke" / stage for stage in ("rollouts", "vae", "rnn", "controller")}
    once = progress_of(folders).points
    for stage in ("rollouts", "controller"):
        manifest = read_json(folders[stage] / "manifest.json")
        assert manifest["config"]["env.frame_skip"] == 1
        manifest["config"]["env.frame_skip"] = 4
        write_json(folders[stage] / "manifest.json", manifest)
    repeated = progress_of(folders).points
    assert once
    assert [point.steps for point in repeated] == [4 * point.steps for point in once]
    assert [point.seconds for point in repeated] == [point.seconds for point in once]


def test_a_run_without_environment_steps_is_in_the_figure_of_hours_alone(copy: Path) -> None:
    folders = {stage: copy / "smoke" / stage for stage in ("controller", "evaluate")}
    played = progress_of(folders)
    manifest = read_json(folders["controller"] / "manifest.json")
    manifest["summary"]["world"] = "dream"
    write_json(folders["controller"] / "manifest.json", manifest)
    dreamt = progress_of(folders)
    assert (played.searched, dreamt.searched) == (True, False)
    steps, hours = draw_progress({"dreamt": [dreamt]}, "CarRacing-v3", random=-30.0)
    assert steps is None
    assert hours is not None
    score = read_json(folders["evaluate"] / "scores.json")["agent"]["mean"]
    lines = list(csv.reader(hours.csv.splitlines()))
    assert lines[1] == ["dreamt", str(manifest["wall_s"] / 3600), str(score)]
    assert not any("paper" in line for line, _, _ in lines)
    both, _ = draw_progress({"dreamt": [dreamt], "played": [played]}, "CarRacing-v3", random=None)
    assert both is not None
    assert "dreamt" not in both.csv


def test_runs_that_differ_in_the_seed_are_lines_of_one_name() -> None:
    seeds = [Progress([Point(100 * n, 36.0, 5.0 * n)], searched=False) for n in (1, 2)]
    found = draw_progress({"PPO": seeds, "none": []}, "CarRacing-v3", random=-30.0)
    for svg, across in zip(found, (["100.0", "200.0"], ["0.01", "0.01"]), strict=True):
        assert svg is not None
        assert svg.count(">PPO</text>") == 1
        assert "PPO, 1 from 5 to 5; PPO, 2 from 10 to 10" in svg
        lines = list(csv.reader(svg.csv.splitlines()))[1:]
        assert lines[:2] == [["PPO, 1", across[0], "5.0"], ["PPO, 2", across[1], "10.0"]]
        assert lines[2:] == [["random policy", x, "-30.0"] for x in across]
