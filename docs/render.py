"""Puts measured figures into the documentation; none is typed by hand.

    python docs/render.py data/quick            # take over the results of a run, and its film
    python docs/render.py data/throughput.json  # take over what `make bench` measured; the same
                                                # for carracing_parity.json, carracing_speed.json
    python docs/render.py                       # render the pages again

What was taken over lies in ``docs/results/`` as JSON. A page has regions ``<!-- name -->`` to
``<!-- /name -->`` that are written from it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg

from worldmodels.artifacts import read_json, write_json
from worldmodels.reporting.scores import HEADER, PAPER_ROWS, Score, score_rows

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
PAGES = (DOCS.parent / "README.md", DOCS / "carracing.md")
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")


def take_run(folder: Path) -> None:
    """Keep what a run's page needs: manifests, scores, and its film as a GIF."""
    manifests = {stage: read_json(folder / stage / "manifest.json") for stage in STAGES}
    scores = read_json(folder / "evaluate" / "scores.json")
    write_json(RESULTS / f"{folder.name}.json", {"scores": scores, "stages": manifests})
    film = folder / "evaluate" / "median.mp4"
    # Every fourth frame of ten seconds, at half the size, with a palette of its own.
    chain = "select=not(mod(n\\,4)),setpts=N/12.5/TB,scale=iw/2:-1:flags=neighbor,split[a][b];"
    chain += "[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-t", "10", "-i", film]
    command += ["-vf", chain, "-r", "12.5", RESULTS / f"{folder.name}.gif"]
    subprocess.run([str(word) for word in command], check=True)


def render() -> None:
    """Write every region of every page."""
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text: str) -> str:
    """`text` with its regions written from the results that are there."""
    for name, region in regions().items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, r=region: m[1] + r + m[2], text, flags=re.DOTALL)
    return text


def regions() -> dict[str, str]:
    """Region -> Markdown."""
    quick = read_json(RESULTS / "quick.json")
    bench = read_json(RESULTS / "throughput.json")
    return {
        "scores": _scores(quick),
        "likelihood": _likelihood(quick),
        "stages": _stages(quick),
        "throughput": _throughput(bench),
        "parity": _parity(read_json(RESULTS / "carracing_parity.json")),
        "speed": _speed(read_json(RESULTS / "carracing_speed.json")),
    }


def _scores(run: dict[str, Any]) -> str:
    env = run["stages"]["evaluate"]["config"]["env.id"]
    scores = [Score.from_record(name, record) for name, record in run["scores"].items()]
    return _table(HEADER, score_rows(scores, PAPER_ROWS.get(env, [])))


def _likelihood(run: dict[str, Any]) -> str:
    nll = run["stages"]["rnn"]["summary"]["validation_nll"]
    rows = [
        ("MDN-RNN", f"{nll['mdn_rnn']:.4f}"),
        ("the same with one Gaussian", f"{nll['single_gaussian']:.4f}"),
        ("a Gaussian around the last latent", f"{nll['copy_last']:.4f}"),
    ]
    return _table(("model", "validation nats a dimension"), rows)


def _stages(run: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in run["stages"].items():
        rates = ", ".join(f"{value:,.0f} {unit}" for unit, value in manifest["throughput"].items())
        peak = max(manifest["resources"]["peak_bytes"].values()) / 1e9
        rows.append((stage, f"{manifest['wall_s']:,.0f} s", f"{peak:.1f} GB", rates))
    total = sum(manifest["wall_s"] for manifest in run["stages"].values())
    rows.append(("all", f"{total / 60:.1f} min", "", ""))
    return _table(("stage", "wall time", "peak memory", "throughput"), rows)


def _throughput(bench: dict[str, Any]) -> str:
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
    return _table(header, rows)


def _parity(record: dict[str, Any]) -> str:
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
    return _table(("", "compared", "result"), rows)


def _speed(record: dict[str, Any]) -> str:
    figures = record["figures"]
    alone = {f["what"]: f["steps_s"] for f in figures if f["threads"] == 1 and f["lanes"] <= 16}
    rows = []
    for figure in figures:
        each = figure["steps_s"] / figure["threads"]
        rows.append(
            (
                figure["what"],
                str(figure["lanes"]),
                str(figure["threads"]),
                f"{figure['steps_s']:,.0f}",
                f"× {each / alone['Gymnasium']:.0f}",
                f"× {each / alone['EnvPool']:.1f}",
            )
        )
    header = ("engine", "lanes", "threads", "steps/s", "a core, to Gymnasium", "a core, to EnvPool")
    fastest = max(
        f["steps_s"] for f in figures if f["what"] == "native 64x64" and f["threads"] == 1
    )
    share = fastest * 64 * 64 * 3 / record["bandwidth"]
    return _table(header, rows) + (
        f"\nOne core writes {record['bandwidth'] / 1e9:.1f} GB/s to memory here; writing the 64x64"
        f" frames is {share:.1%} of that at most.\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    """Take over what is named, then render."""
    for name in sys.argv[1:]:
        path = Path(name)
        if path.is_dir():
            take_run(path)
        else:
            shutil.copyfile(path, RESULTS / path.name)
    render()


if __name__ == "__main__":
    main()
