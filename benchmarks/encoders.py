"""Parameters and speed of the encoders for frames of 64 pixels, on one thread: two minutes.

    python benchmarks/encoders.py

Training is that of the stage ``vae``: loss and gradients of a batch. Encoding is that of latents,
in a batch, and of one environment in control. A rate is images per second of processor time, which
other programs on the machine change little; the encoders take turns, and a figure is the median
over the turns. Writes ``encoders.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from pipeline import BFLOAT16

from worldmodels.agents.registry import ENCODERS
from worldmodels.files.atomic import write_json
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.training import cpu

LATENT, SIDE = 32, 64
BATCH = 100
"""As ``vae.batch_size``."""


def built(name: str) -> Any:
    """The encoder of that name, with new weights."""
    torch.manual_seed(0)
    kind: Callable[..., Any] = ENCODERS[name]
    return kind(latent_size=LATENT, frame_size=SIDE)


def pixels(encoder: Encoder, rows: int) -> torch.Tensor:
    """Random frames or clips, uint8."""
    clip = () if encoder.clip_length == 1 else (encoder.clip_length,)
    return torch.randint(0, 256, (rows, *clip, SIDE, SIDE, 3), dtype=torch.uint8)


def rate(call: Callable[[], object], images: int, seconds: float) -> float:
    """Images per second of processor time, after a first call."""
    call()
    calls, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        call()
        calls += 1
    return calls * images / (time.process_time() - began)


def rates(name: str, seconds: float) -> dict[str, float]:
    """Rates of training, of encoding in a batch, and of one frame at a time."""
    encoder = built(name)
    batch, one = pixels(encoder, BATCH), pixels(encoder, 1)
    dtype = torch.bfloat16 if BFLOAT16 else torch.float32

    def train() -> None:
        with torch.autocast("cpu", torch.bfloat16) if BFLOAT16 else nullcontext():
            loss, _ = encoder.loss(batch)
        loss.backward()

    def encode(frames: torch.Tensor) -> Callable[[], object]:
        return lambda: encoder.encode(to_input(frames).to(dtype))

    found = {"training": rate(train, BATCH, seconds)}
    encoder.to(dtype).eval()
    with torch.inference_mode():
        found["encoding"] = rate(encode(batch), BATCH, seconds)
        found["one"] = rate(encode(one), 1, seconds)
    return found


def main() -> None:
    """Measure, print each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each encoder")
    parser.add_argument("--out", type=Path, default=Path("data/encoders.json"))
    options = parser.parse_args()
    cpu.tune(1)
    torch.set_num_threads(1)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ENCODERS}
    for _ in range(options.rounds):
        for name, found in turns.items():
            found.append(rates(name, options.seconds))
            say(f"{name}: " + ", ".join(f"{what} {v:,.0f}/s" for what, v in found[-1].items()))
    figures = []
    for name, found in turns.items():
        encoder = built(name)
        medians = {what: statistics.median(turn[what] for turn in found) for what in found[0]}
        count = sum(part.numel() for part in encoder.parameters())
        figures.append(
            {"encoder": name, "frames": encoder.clip_length, "parameters": count, **medians}
            | {"turns": found}
        )
    write_json(options.out, {**provenance(), "bfloat16": BFLOAT16, "figures": figures})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
