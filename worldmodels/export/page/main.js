// Loads the agent beside this page and shows its two views.

import { Agent } from "./agent.js";
import { LatentView } from "./latents.js";
import { PlayView } from "./play.js";

const element = (id) => document.getElementById(id);
const VIEWS = ["play", "latents"];

function select(chosen, play) {
  for (const view of VIEWS) {
    element(view).hidden = view !== chosen;
    element(`tab-${view}`).setAttribute("aria-selected", view === chosen);
    element(`tab-${view}`).tabIndex = view === chosen ? 0 : -1;
  }
  play.shown = chosen === "play";
}

async function main() {
  const agent = await Agent.load();
  element("agent").textContent = agent.description.name;
  element("environment").textContent = agent.description.environment;
  const play = new PlayView(agent);
  const latents = new LatentView(agent, () => play.dream.now.latent);
  for (const view of VIEWS) {
    const tab = element(`tab-${view}`);
    tab.addEventListener("click", () => select(view, play));
    tab.addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      const other = VIEWS.find((name) => name !== view);
      select(other, play);
      element(`tab-${other}`).focus();
    });
  }
  document.body.dataset.ready = "";
  await play.loop();
}

main().catch((error) => {
  element("problem").textContent = `This page cannot run: ${error.message}`;
  element("problem").hidden = false;
});
