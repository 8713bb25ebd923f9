"""Charts of metrics, scores as dots, learning curves: SVG and CSV."""

import csv
import re
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.charts import COLOURS, Chart, draw
from worldmodels.reporting.dots import draw_dots
from worldmodels.reporting.figures import Figures
from worldmodels.reporting.learning import PAPER_CURVE, Search, against_steps, draw_learning
from worldmodels.reporting.page import render
from worldmodels.reporting.scores import PAPER_SCORES, summarise
from worldmodels.runs.tracking import read_metrics

SVG = "{http://www.w3.org/2000/svg}"


def shown(svg: str) -> list[str]:
    """The texts of an SVG."""
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]


def test_a_chart_takes_the_colour_of_the_page_and_is_the_same_each_time() -> None:
    rows = [(step, "train/loss", 1.0 / step, 0.1 * step) for step in range(1, 50)]
    chart = Chart({"train/loss": "training"}, "step", "loss", log=True)
    svg = draw(chart, rows)
    assert svg is not None
    assert svg == draw(chart, rows)
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "training" in re.sub(r"<!--.*?-->", "", svg)
    assert draw(Chart({"absent": "absent"}, "step", "loss"), rows) is None


@pytest.mark.parametrize("name", ["_private", "$x$", r"$\frac$", "<script>", "a-->b"])
def test_a_label_is_shown_as_it_is(name: str) -> None:
    svg = draw(Chart({"a": name}, "step", "loss"), [(1, "a", 2.0, 0.0), (2, "a", 1.0, 0.0)])
    assert svg is not None
    assert name in shown(svg)
    label = ElementTree.fromstring(svg).attrib["aria-label"]
    assert label == f"loss over step: {name} from 2 to 1"
    score = summarise(name, np.array([1.0, 2.0]), range(2))
    assert name in shown(draw_dots("policy", [score]))


def test_a_chart_has_its_numbers_as_csv() -> None:
    rows = [(step, name, step * 0.1, 0.0) for name in "ab" for step in (1, 2)]
    svg = draw(Chart({"a": "first, of two", "b": "second"}, "step", "loss"), rows)
    assert svg is not None
    assert list(csv.reader(svg.csv.splitlines())) == [
        ["line", "step", "loss"],
        ["first, of two", "1.0", "0.1"],
        ["first, of two", "2.0", "0.2"],
        ["second", "1.0", "0.1"],
        ["second", "2.0", "0.2"],
    ]


def paths(svg: str, colour: str) -> list[np.ndarray]:
    """The points of the lines of a colour, without markers and the example in the legend."""
    drawn = [
        path.attrib["d"]
        for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"stroke: {colour}" in path.attrib.get("style", "") and "C" not in path.attrib["d"]
    ]
    return [np.array(re.findall(r"[-.\d]+", path), float).reshape(-1, 2) for path in drawn[:-1]]


def test_lines_of_one_label_stand_beside_their_mean_and_once_in_the_legend() -> None:
    seeds = {"a": {1: 3.0, 10: 5.0, 100: 4.0}, "b": {10: 1.0, 100: 3.0, 1000: 7.0}}
    rows = [(float(x), name, y, 0.0) for name, line in seeds.items() for x, y in line.items()]
    rows += [(x, "c", 0.0, 0.0) for x in (1.0, 1000.0)]
    chart = Chart({"a": "PPO", "b": "PPO", "c": "SAC"}, "step", "return", log_x=True)
    svg = draw(chart, rows)
    assert svg is not None
    assert [text for text in shown(svg) if text in ("PPO", "SAC")] == ["PPO", "SAC"]
    first, second, mean = paths(svg, COLOURS[0])
    # Steps 10 and 100 are the ones that both have.
    assert np.allclose(mean, (first[1:] + second[:2]) / 2, atol=1e-4)
    assert len(paths(svg, COLOURS[1])) == 1
    table = list(csv.reader(svg.csv.splitlines()))[1:]
    assert table[3:8] == [
        *(["PPO, 2", x, y] for x, y in (("10.0", "1.0"), ("100.0", "3.0"), ("1000.0", "7.0"))),
        *(["PPO, mean", x, y] for x, y in (("10.0", "3.0"), ("100.0", "3.5"))),
    ]
    label = ElementTree.fromstring(svg).attrib["aria-label"]
    assert "PPO, 1 from 3 to 4; PPO, 2 from 1 to 7; PPO, mean from 3 to 3.5; SAC from" in label


def test_a_mean_is_at_the_positions_of_all_lines_of_its_label() -> None:
    rows = [(x, "a", 2 * x, 0.0) for x in (0.0, 2.0, 6.0)] + [
        (x, "b", 0.0, 0.0) for x in (1.0, 4.0)
    ]
    svg = draw(Chart({"a": "PPO", "b": "PPO"}, "step", "return"), rows)
    assert svg is not None
    first, second, mean = paths(svg, COLOURS[0])
    assert np.allclose(mean[:, 0], [second[0, 0], first[1, 0], second[1, 0]], atol=1e-4)
    # Values 1, 2 and 4: a quarter, a half and all of the way to that of `a` at step 2.
    level, unit = second[0, 1], first[1, 1] - second[0, 1]
    assert np.allclose(mean[:, 1], level + np.array([0.25, 0.5, 1.0]) * unit, atol=1e-4)


def test_lines_of_one_label_without_a_common_range_have_no_mean() -> None:
    rows = [(x, "a", x, 0.0) for x in (1.0, 2.0)] + [(x, "b", x, 0.0) for x in (3.0, 4.0)]
    svg = draw(Chart({"a": "PPO", "b": "PPO"}, "step", "return"), rows)
    assert svg is not None
    assert [len(path) for path in paths(svg, COLOURS[0])] == [2, 2]


def test_line_colours_have_contrast_on_white_and_on_the_dark_page() -> None:
    def luminance(colour: str) -> float:  # WCAG 2.2, relative luminance
        channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour in COLOURS:
        for background in ("#ffffff", "#f5f6f8", "#121416", "#1b1e22"):
            low, high = sorted((luminance(colour), luminance(background)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, background)


# --- scores as dots


def test_every_episode_is_a_dot() -> None:
    returns = {"agent": np.linspace(100, 900, 30), "random policy": np.linspace(-50, 0, 20)}
    scores = [summarise(name, one, range(7, 7 + len(one))) for name, one in returns.items()]
    svg = draw_dots("policy", scores, PAPER_SCORES["CarRacing-v3"][0])
    assert svg == draw_dots("policy", scores, PAPER_SCORES["CarRacing-v3"][0])
    collections = ElementTree.fromstring(svg).findall(f".//{SVG}g[@clip-path]/{SVG}use")
    dots = [element for element in collections if "fill: #" in element.get("style", "")]
    assert sum(COLOURS[0] in dot.get("style", "") for dot in dots) == 30
    assert sum(COLOURS[1] in dot.get("style", "") for dot in dots) == 20
    assert {"500", "\N{MINUS SIGN}25", "paper 906"} <= set(shown(svg))
    header, *rows = csv.reader(svg.csv.splitlines())
    assert header == ["policy", "seed", "return"]
    assert [float(row[2]) for row in rows] == [*returns["agent"], *returns["random policy"]]
    assert [int(row[1]) for row in rows] == [*range(7, 37), *range(7, 27)]


def test_very_many_episodes_are_drawn_as_a_bitmap() -> None:
    score = summarise(
        "agent in the dream", np.random.default_rng(0).normal(0, 1, 2000), range(2000)
    )
    svg = draw_dots("policy", [score])
    element = ElementTree.fromstring(svg)
    assert len(element.findall(f".//{SVG}image")) == 1
    assert "agent in the dream: mean " in element.attrib["aria-label"]
    assert len(svg) < 100_000
    assert len(svg.csv.splitlines()) == 2001


# --- learning curves


def test_a_learning_curve_is_against_the_steps_of_all_generations() -> None:
    rows = [(generation, "fitness/steps", 100.0 * generation, 0.0) for generation in (1, 2, 3)]
    rows += [(1, "selection/mean", 5.0, 0.0), (3, "selection/mean", 7.0, 0.0)]
    search = Search(rows, "CarRacing-v3")
    assert against_steps(search, "selection/mean") == [(100.0, 5.0), (600.0, 7.0)]
    assert against_steps(search, "absent") == []


@pytest.mark.parametrize(("world", "times"), [("real", 4), ("dream", 1)])
def test_a_learning_curve_of_repeated_actions_is_against_the_simulators_steps(
    copy: Path, world: str, times: int
) -> None:
    folder = copy / "smoke/controller"
    manifest = read_json(folder / "manifest.json")
    assert manifest["config"]["env.frame_skip"] == 1
    manifest["config"]["env.frame_skip"] = 4
    manifest["summary"]["world"] = world
    write_json(folder / "manifest.json", manifest)
    figures = Figures()
    render("smoke", {"controller": folder}, None, figures=figures)
    figures.write(copy)
    axis = {"real": "environment steps", "dream": "steps in training"}[world]
    name = f"controller-return-over-{axis.replace(' ', '-')}.csv"
    with (copy / "figures" / name).open(newline="") as file:
        lines = list(csv.DictReader(file))
    steps = [float(row[axis]) for row in lines if row["line"] == "mean of the generation"]
    metrics = read_metrics(folder / "metrics.csv")
    taken = [value for _, metric, value, _ in metrics if metric == "fitness/steps"]
    assert steps == [times * total for total in accumulate(taken)]


@pytest.mark.parametrize(
    ("envs", "beside"),
    [
        (["CarRacing-v3"], True),
        (["CarRacing-v3", "CarRacing-v3"], True),
        (["Breakout"], False),
        ([None], False),
        (["CarRacing-v3", None], False),
    ],
)
def test_the_papers_curve_stands_beside_those_of_its_environment(
    envs: list[str | None], beside: bool
) -> None:
    svg = draw_learning({"this run": [(1e6, 500.0), (2e6, 700.0)]}, envs)
    assert svg is not None
    paper = [line for line in svg.csv.splitlines() if "paper" in line]
    assert len(paper) == (len(PAPER_CURVE) if beside else 0)
    assert draw_learning({"this run": []}, envs) is None


def test_metrics_of_which_no_chart_can_be_drawn_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    values = (1e308, -1e308, "nan", 2, 3)
    lines = [f"{step},loss,{value},0,x" for step, value in enumerate(values)]
    path.write_text("\n".join(["step,name,value,seconds,made_by", *lines, ""]))
    drawn = draw(Chart({"loss": "loss"}, "step", "loss"), read_metrics(path))
    assert drawn is not None
    assert "308" not in drawn.csv
    assert "4.0,3.0" in drawn.csv
