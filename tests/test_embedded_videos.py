"""The videos of stage=evaluate: of the median and the worst episodes, made after the scores."""

from pathlib import Path

import pytest
from command import ALONE, run
from pages import rows

from worldmodels.data.episodes import EpisodeSet
from worldmodels.files.atomic import read_json
from worldmodels.reporting.page import render
from worldmodels.reporting.scores import video_episodes

SHOWN = {"median", "worst", "worst-2"}
"""Of five episodes."""


@pytest.mark.system
def test_videos_leave_the_scores_as_they_are(copy: Path) -> None:
    words = ("stage=evaluate", "preset=smoke", "evaluate.episodes=5", "evaluate.engine=native")
    folder = copy / "smoke/evaluate"
    scores = []
    for video in ("false", "true"):
        done = run(copy, *words, f"evaluate.video={video}", "overwrite=true", ALONE)
        assert done.returncode == 0, done.stderr
        scores.append((folder / "scores.json").read_bytes())
        made = {path.name for path in folder.iterdir() if path.suffix in (".mp4", ".png")}
        names = {f"{name}{end}" for name in SHOWN for end in (".mp4", ".png")}
        assert made == (names if video == "true" else set())
    assert scores[0] == scores[1]

    agent = read_json(folder / "scores.json")["agent"]
    page = render("a", {"evaluate": folder}, None)
    assert page.count("<video") == page.count("poster=") == 3
    shown = video_episodes(agent["returns"])
    assert shown.keys() == SHOWN
    worst = rows(page, "Scores")[-5:-3]
    for row, name in zip(worst, ("worst", "worst-2"), strict=True):
        assert row.split()[0] == str(agent["seeds"][shown[name]])
        assert row.endswith("below ")


@pytest.mark.system
def test_sixteen_episodes_are_recorded_whatever_the_batches(copy: Path) -> None:
    words = ("stage=evaluate", "preset=smoke", "evaluate.episodes=20", "evaluate.engine=native")
    more = ("env.num_envs=10", "env.max_steps=8", "overwrite=true", ALONE)
    done = run(copy, *words, *more)
    assert done.returncode == 0, done.stderr
    episodes = EpisodeSet.open([copy / "smoke/evaluate/episodes"], "refuse")
    assert [len(shard.lengths) for shard in episodes.shards] == [10, 6]
    scored = read_json(copy / "smoke/evaluate/scores.json")["agent"]["seeds"]
    assert episodes.seeds.tolist() == scored[:16]
