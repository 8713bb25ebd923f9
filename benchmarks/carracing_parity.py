"""How equal the native CarRacing is to Gymnasium's: ``make parity``.

    tracks      the corners of every tile and kerb of 1,000 seeds
    dynamics    50 episodes of up to 1,000 steps by four drivers: every float of the car's bodies,
                rewards, visited tiles and ends, step by step
    pictures    grey levels between the frames along those drives, and a sheet of the worst
    scores      the agents of runs (``--agents data/<run>/controller/agent``), on equal seeds in
                both

Gymnasium is given no pictures to draw where only its physics is compared.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import scipy.stats
from gymnasium.envs.box2d.car_racing import CarRacing
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from worldmodels.agents.folder import read_agent
from worldmodels.envs.carracing.track import draw_track
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.engines import EnvSpec
from worldmodels.evolution.fitness import EpisodeSpec, fitness
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import Progress, console
from worldmodels.system.cores import available_cores
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.specs import RealWorldSpec
from worldmodels.worlds.world import World

Driver = Callable[[CarRacing, int, np.random.Generator], NDArray[np.float32]]
STEPS = 1000
SHEET = 6


def brownian() -> Driver:
    """A random walk of the controls, clipped to their box."""
    low, at = (-1.0, 0.0, 0.0), np.zeros(3)

    def drive(env: CarRacing, step: int, rng: np.random.Generator) -> NDArray[np.float32]:
        nonlocal at
        at = rng.uniform(low, 1) if step == 0 else at
        at = np.clip(at + math.sqrt(1 / 50) * rng.standard_normal(3), low, 1)
        return at.astype(np.float32)

    return drive


def full_throttle(env: CarRacing, step: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """All gas, weaving a little."""
    return np.array([0.1 * math.sin(step / 30), 1, 0], np.float32)


def off_the_field(env: CarRacing, step: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Straight on, over the grass and off the field."""
    return np.array([0, step % 40 < 30, 0], np.float32)


def follower(env: CarRacing, step: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Steers for the road four tiles ahead, slower where it bends."""
    car = env.car
    assert car is not None
    points = np.array([point[2:4] for point in env.track])
    near = int(((points - tuple(car.hull.position)) ** 2).sum(axis=1).argmin())
    ahead_x, ahead_y = points[(near + 4) % len(points)] - tuple(car.hull.position)
    turn = _angle(math.atan2(ahead_y, ahead_x) - math.pi / 2 - car.hull.angle)
    bend = abs(_angle(env.track[(near + 8) % len(points)][1] - env.track[near][1]))
    now, wanted = math.hypot(*car.hull.linearVelocity), 70 / (1 + 0.8 * bend)
    controls = np.clip(-2 * turn, -1, 1), 0.5 * (now < wanted), 0.4 * (now > wanted + 8)
    return np.array(controls, np.float32)


def _angle(angle: float) -> float:
    return (angle + math.pi) % (2 * math.pi) - math.pi


DRIVERS: dict[str, Driver] = {
    "brownian": brownian(),
    "full throttle": full_throttle,
    "road follower": follower,
    "off the field": off_the_field,
}


def gymnasium_env(drawn: bool) -> CarRacing:
    """Gymnasium's CarRacing, with or without drawing."""
    env = CarRacing()
    if not drawn:
        env._render = lambda mode: None  # type: ignore[method-assign]  # of this environment alone
    return env


def bodies(env: CarRacing) -> NDArray[np.float32]:
    """Angle, velocity, spin, place, sine and cosine of hull and wheels (5, 8)."""
    assert env.car is not None
    rows = []
    for body in (env.car.hull, *env.car.wheels):
        c, s = body.GetWorldVector((1, 0))
        rows.append((body.angle, *body.linearVelocity, body.angularVelocity, *body.position, s, c))
    return np.array(rows, np.float32)


def track_error(seed: int) -> float:
    """Largest difference of a corner; infinite where the numbers of tiles differ."""
    track = draw_track(gymnasium.utils.seeding.np_random(seed)[0])
    env = gymnasium_env(drawn=False)
    env.reset(seed=seed)
    quads: list[Any] = []
    for tile, border, has_border in zip(track.tiles, track.borders, track.has_border, strict=True):
        quads += [tile, border] if has_border else [tile]
    theirs = [quad for quad, _ in env.road_poly]
    return float(np.abs(np.array(quads) - theirs).max()) if len(theirs) == len(quads) else np.inf


def drive(name: str, seed: int) -> dict[str, Any]:
    """One episode in both simulators: the first step that differs, and by how much."""
    env, ours = gymnasium_env(drawn=False), CarRacingVectorEnv(1, None, size=64)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    ours.reset(seed=seed)
    bits, events, error, steps = None, None, 0.0, 0
    for step in range(STEPS):
        action = DRIVERS[name](env, step, rng)
        _, reward, terminated, _, _ = env.step(action)
        _, rewards, ends, _, _ = ours.step(action[None])
        state = ours.get_state()
        difference = np.abs(state["envs.body"][0, :, 2:10] - bodies(env)).max()
        error, steps = max(error, float(difference)), step + 1
        road: Any = env.road  # Gymnasium's hint says None
        visited = {tile.idx for tile in road if tile.road_visited}
        same = visited == set(np.flatnonzero(state["envs.visited"][0]).tolist())
        if bits is None and difference > 0:
            bits = step
        if events is None and not (same and rewards[0] == reward and ends[0] == terminated):
            events = step
        if terminated:
            break
    record = {"driver": name, "seed": seed, "steps": steps, "terminated": bool(terminated)}
    return {**record, "first_bit": bits, "first_event": events, "error": error}


def pictures(seed: int) -> dict[str, Any]:
    """Differences along one drive, and the worst pair of frames."""
    env, ours = gymnasium_env(drawn=True), CarRacingVectorEnv(1, None, size=96)
    rng, name = np.random.default_rng(seed), list(DRIVERS)[seed % len(DRIVERS)]
    pairs = [(env.reset(seed=seed)[0], ours.reset(seed=seed)[0][0])]
    for step in range(300):
        action = DRIVERS[name](env, step, rng)
        frame, _, terminated, _, _ = env.step(action)
        pair = frame, ours.step(action[None])[0][0]
        if step % 10 == 9:
            pairs.append(pair)
        if terminated:
            break
    differences = [np.abs(a.astype(int) - b) for a, b in pairs]
    road = [float(d[:84].mean()) for d in differences]
    worst = int(np.argmax(road))
    bar = [float(d[84:].mean()) for d in differences]
    return {"road": road, "bar": bar, "worst": (road[worst], *pairs[worst])}


def scores(folder: Path, episodes: int) -> dict[str, Any]:
    """Mean returns of an agent in both, and the 95 % interval of the mean of their differences."""
    config = read_agent(folder).config
    returns = []
    for engine in ("gymnasium", "native"):
        world_spec = RealWorldSpec(
            EnvSpec(engine=engine),
            encoder=folder / "vae.safetensors",
            dynamics=folder / "rnn.safetensors",
            features=config.features,
        )
        candidate = read_agent(folder).parameters[None]
        with LocalPool[World](world_spec, available_cores(), 300.0) as pool:
            spec = EpisodeSpec(16, STEPS, config.controller)
            played = fitness(pool, candidate, range(episodes), spec)
        returns.append(played.returns[0])
    theirs, ours = returns
    interval = scipy.stats.bootstrap((ours - theirs,), np.mean, rng=0).confidence_interval
    return {
        "agent": folder.resolve().parents[1].name,
        "episodes": episodes,
        "gymnasium": float(theirs.mean()),
        "native": float(ours.mean()),
        "correlation": float(np.corrcoef(theirs, ours)[0, 1]),
        "interval": [float(interval.low), float(interval.high)],
    }


def main() -> None:
    """Compare, print a table, write JSON and the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tracks", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--videos", type=int, default=20)
    parser.add_argument("--agents", type=Path, nargs="*", default=[])
    parser.add_argument("--scores", type=int, default=100, help="episodes of each agent")
    parser.add_argument("--out", type=Path, default=Path("data/carracing_parity.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    names = list(DRIVERS)
    work: list[tuple[str, Callable[..., Any], list[tuple[Any, ...]]]] = [
        ("tracks", track_error, [(seed,) for seed in range(options.tracks)]),
        ("dynamics", drive, [(names[i % 4], i) for i in range(options.episodes)]),
        ("pictures", pictures, [(seed,) for seed in range(options.videos)]),
    ]
    done: dict[str, list[Any]] = {}
    count = sum(len(jobs) for _, _, jobs in work) + len(options.agents)
    with (
        ProcessPoolExecutor(available_cores()) as pool,
        Progress("comparing", count, "comparisons") as progress,
    ):
        for what, function, jobs in work:
            done[what] = []
            for result in pool.map(function, *zip(*jobs, strict=True)):
                done[what].append(result)
                progress.advance(note=what)
        done["scores"] = []
        for folder in options.agents:
            done["scores"].append(scores(folder, options.scores))
            progress.advance(note="scores")
    record = summary(done)
    write_json(options.out, {**provenance(), **record})
    sheet = options.out.with_suffix(".png")
    Image.fromarray(contact_sheet(done["pictures"])).save(sheet)
    console.print(table(record))
    console.print(f"wrote {options.out} and {sheet}")


def summary(done: dict[str, list[Any]]) -> dict[str, Any]:
    """The figures of all comparisons."""
    dynamics = done["dynamics"]
    road = np.concatenate([video["road"] for video in done["pictures"]])
    bar = np.concatenate([video["bar"] for video in done["pictures"]])
    return {
        "tracks": {"seeds": len(done["tracks"]), "largest_error": max(done["tracks"])},
        "dynamics": {
            "episodes": len(dynamics),
            "steps": sum(episode["steps"] for episode in dynamics),
            "terminated": sum(episode["terminated"] for episode in dynamics),
            "equal_events": sum(episode["first_event"] is None for episode in dynamics),
            "equal_bits": sum(episode["first_bit"] is None for episode in dynamics),
            "largest_error": max(episode["error"] for episode in dynamics),
        },
        "pictures": {
            "frames": len(road),
            "road_mean": float(road.mean()),
            "road_worst": float(road.max()),
            "bar_mean": float(bar.mean()),
        },
        "scores": done["scores"],
    }


def table(record: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    tracks, dynamics, seen = record["tracks"], record["dynamics"], record["pictures"]
    printed = Table("", "compared", "result")
    printed.add_row(
        "tracks", f"{tracks['seeds']} seeds", f"largest error {tracks['largest_error']:g}"
    )
    printed.add_row(
        "dynamics",
        f"{dynamics['episodes']} episodes, {dynamics['steps']:,} steps,"
        f" {dynamics['terminated']} terminated",
        f"equal rewards, tiles and ends in {dynamics['equal_events']}, every bit of the bodies in"
        f" {dynamics['equal_bits']}; largest error {dynamics['largest_error']:g}",
    )
    printed.add_row(
        "pictures",
        f"{seen['frames']} frames",
        f"{seen['road_mean']:.3f} grey levels over the road, {seen['road_worst']:.3f} in the worst;"
        f" {seen['bar_mean']:.3f} over the instruments",
    )
    for one in record["scores"]:
        low, high = one["interval"]
        printed.add_row(
            f"score of run {one['agent']}",
            f"{one['episodes']} episodes: Gymnasium {one['gymnasium']:.1f}, native"
            f" {one['native']:.1f}",
            f"difference of means {one['native'] - one['gymnasium']:.1f}, 95 % in [{low:.1f},"
            f" {high:.1f}]; correlation {one['correlation']:.2f}",
        )
    return printed


def contact_sheet(videos: list[dict[str, Any]]) -> NDArray[np.uint8]:
    """The worst frames: Gymnasium, native, and ten times the difference."""
    worst = sorted((video["worst"] for video in videos), key=lambda one: -one[0])[:SHEET]
    rows = []
    for _, theirs, ours in worst:
        difference = np.clip(10 * np.abs(theirs.astype(int) - ours), 0, 255).astype(np.uint8)
        row = np.concatenate([theirs, ours, difference], axis=1)
        rows.append(row.repeat(3, axis=0).repeat(3, axis=1))
    return np.concatenate(rows)


if __name__ == "__main__":
    main()
