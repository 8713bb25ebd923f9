"""Frames a second of the page of ``stage=play`` in headless Chromium on one core: a minute.

    python benchmarks/play.py        # writes data/play.json

The browser and this process share one core. Each agent drives with the strip of expected frames
shown, at most 60 frames/s, the rate of the browser; then the parts of a step are timed alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from worldmodels.config.shipped import PRETRAINED
from worldmodels.export.folder import write_onnx
from worldmodels.export.web import PageServer, write_page
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

SHOWN = """async (seconds) => {
    const element = (name) => document.querySelector("#" + name);
    const time = () => Number(element("time").textContent);
    element("speed").value = 60;
    element("speed").dispatchEvent(new Event("input"));
    await new Promise((resolve) => setTimeout(resolve, 2000));
    let [steps, last, begin] = [0, time(), performance.now()];
    while (performance.now() - begin < 1000 * seconds) {
        await new Promise(requestAnimationFrame);
        const now = time();
        steps += now < last ? now : now - last;
        last = now;
        if (!element("ended").hidden) element("restart").click();
    }
    return steps * 1000 / (performance.now() - begin);
}"""
"""Frames a second that the page shows; an episode that ends is followed by another."""
PARTS = """async (steps) => {
    const { Agent } = await import("./agent.js");
    const { Dream } = await import("./dream.js");
    document.querySelector("#pause").click();
    const dream = new Dream(await Agent.load());
    const spent = { controller: 0, dynamics: 0, decoder: 0 };
    const timed = async (part, work) => {
        const begin = performance.now();
        const result = await work();
        spent[part] += (performance.now() - begin) / steps;
        return result;
    };
    for (let step = 0; step < steps; step++) {
        const action = await timed("controller", () => dream.act());
        await timed("dynamics", () => dream.step(action));
        await timed("decoder", () => dream.agent.decode([dream.now.latent]));
    }
    return spent;
}"""
"""Milliseconds of each part of a step."""


def measure(browser: Browser, name: str, seconds: float) -> dict[str, Any]:
    """Frames a second of one agent's page, and the milliseconds of a step's parts."""
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(Path(folder), PRETRAINED / name, name, 1.0)
        write_page(Path(folder))
        with PageServer(Path(folder), 0) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            page = browser.new_page()
            page.goto(server.address)
            page.wait_for_selector("body[data-ready]", timeout=120_000)
            shown = page.evaluate(SHOWN, seconds)
            parts = page.evaluate(PARTS, 300)
            page.close()
            server.shutdown()
            thread.join()
    return {"frames_per_second": shown, "milliseconds": parts}


def main() -> None:
    """Measure each shipped agent and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("data/play.json"))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each agent")
    options = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        version = browser.version
        for name in ("carracing", "takecover"):
            figures[name] = measure(browser, name, options.seconds)
            say(f"play: {name}: {figures[name]}")
        browser.close()
    record = {"chromium": version, "figures": figures}
    write_json(options.out, {**provenance(), **record})


if __name__ == "__main__":
    main()
