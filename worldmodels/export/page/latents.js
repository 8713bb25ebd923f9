// The view in which one moves latents, and has a picture of one's own reconstructed.

import { EpisodeNoise } from "./noise.js";
import { draw, readSquare } from "./pictures.js";

const LARGEST = 4; // of a slider; the prior is a standard normal distribution

const element = (id) => document.getElementById(id);

export class LatentView {
  /**
   * @param agent the exported agent.
   * @param dreamt gives the present latent of the dream.
   */
  constructor(agent, dreamt) {
    this.agent = agent;
    this.samples = 0;
    this.sliders = Array.from({ length: agent.size }, (_, i) => this.slider(i));
    element("zeros").addEventListener("click", () => this.set(new Float32Array(agent.size)));
    element("from-dream").addEventListener("click", () => this.set(dreamt()));
    element("from-prior").addEventListener("click", () => {
      this.set(new EpisodeNoise(this.samples++, 0).normal(0, agent.size));
    });
    element("file").addEventListener("change", ({ target }) => this.take(target.files[0]));
    for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
      document.addEventListener(kind, (event) => { // anywhere, else the browser would open the file
        event.preventDefault();
        element("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
        if (kind === "drop") this.take(event.dataTransfer.files[0]);
      });
    }
    this.set(dreamt());
  }

  slider(index) {
    const label = document.createElement("label");
    const slider = document.createElement("input");
    const value = document.createElement("output");
    Object.assign(slider, { type: "range", min: -LARGEST, max: LARGEST, step: 0.01 });
    slider.addEventListener("input", () => this.decode());
    label.append(`z${index + 1} `, value, slider);
    element("sliders").append(label);
    return { slider, value };
  }

  set(latent) {
    this.sliders.forEach(({ slider }, i) => { slider.value = latent[i]; });
    return this.decode();
  }

  /** Draws what the sliders say; while it does, later positions wait, and the last one is drawn. */
  async decode() {
    this.stale = true;
    if (this.decoding) return;
    this.decoding = true;
    while (this.stale) {
      this.stale = false;
      const latent = this.sliders.map(({ slider }) => Number(slider.value));
      this.sliders.forEach(({ value }, i) => { value.textContent = latent[i].toFixed(2); });
      const [picture] = await this.agent.decode([latent]);
      draw(element("decoded"), picture);
    }
    this.decoding = false;
  }

  /** Reconstructs a picture file, and sets the sliders to its latent. */
  async take(file) {
    if (!file) return;
    element("tab-latents").click();
    const problem = element("picture-problem");
    problem.hidden = true;
    let picture;
    try {
      picture = await readSquare(file, this.agent.side);
    } catch {
      problem.textContent = `${file.name}: is no picture that this browser reads; choose a PNG or JPEG`;
      problem.hidden = false;
      return;
    }
    element("pictures").hidden = false;
    draw(element("original"), picture);
    const { mean } = await this.agent.encode(picture);
    const [reconstruction] = await this.agent.decode([mean]);
    draw(element("reconstruction"), reconstruction);
    await this.set(mean);
  }
}
