// The view in which one drives, or the controller does.

import { Controls, sign } from "./controls.js";
import { Dream } from "./dream.js";
import { ActionMeters } from "./meters.js";
import { draw } from "./pictures.js";

const AHEAD = 5, EVERY = 2; // frames of the strip, and steps between them
const REFRESH = 5; // steps between two strips, which take longer than a step
const EARLY = 2; // milliseconds that a step may come before its time, as frames of a screen do

const element = (id) => document.getElementById(id);
const nextFrame = () => new Promise(requestAnimationFrame);

export class PlayView {
  constructor(agent) {
    this.agent = agent;
    this.dream = new Dream(agent);
    this.driver = "controller";
    this.paused = false;
    this.shown = true;
    this.wants = "begin"; // what the loop does next, beside steps: begin, step or nothing
    this.moments = []; // of the last steps, for the frames a second
    this.controls = new Controls(agent.description, element("pad"), () => this.drive("you"));
    this.strip = Array.from({ length: AHEAD }, (_, i) => this.stripCanvas((i + 1) * EVERY));
    this.meters = new ActionMeters(this.controls, element("actions"));
    this.listen();
    this.drive(this.driver);
  }

  stripCanvas(steps) {
    const figure = document.createElement("figure");
    const canvas = document.createElement("canvas");
    const caption = document.createElement("figcaption");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `The frame that the model expects after ${steps} steps`);
    caption.textContent = `+${steps}`;
    figure.append(canvas, caption);
    element("strip").append(figure);
    return canvas;
  }

  listen() {
    const { description } = this.agent;
    element("help").textContent =
      `Keys: ${Object.keys(this.controls.keys).map(sign).join(" ")} drive, space pauses, S steps, R restarts.`;
    element("termination").high = description.termination_threshold;
    element("start").max = description.starts;
    element("starts").textContent = description.starts;
    element("you").addEventListener("click", () => this.drive("you"));
    element("controller").addEventListener("click", () => this.drive("controller"));
    element("pause").addEventListener("click", () => this.pause(!this.paused));
    element("step").addEventListener("click", () => this.stepOnce());
    element("restart").addEventListener("click", () => this.want("begin"));
    element("next").addEventListener("click", () => {
      element("start").value = (this.start() + 1) % description.starts + 1;
      this.want("begin");
    });
    for (const id of ["start", "seed"]) {
      element(id).addEventListener("change", () => this.want("begin"));
    }
    element("temperature").value = this.dream.temperature;
    element("speed").value /= description.frame_skip; // as fast as the game
    for (const id of ["temperature", "speed"]) {
      element(id).addEventListener("input", () => this.readSliders());
      element(id).addEventListener("pointerup", ({ target }) => target.blur()); // arrow keys drive
    }
    this.readSliders();
    const keys = { " ": "pause", s: "step", r: "restart" };
    document.addEventListener("keydown", (event) => {
      if (event.key in keys && this.shown && !event.target.matches("input, button")) {
        event.preventDefault();
        element(keys[event.key]).click();
      }
    });
  }

  readSliders() {
    this.dream.temperature = Number(element("temperature").value);
    this.speed = Number(element("speed").value);
    element("temperature-value").textContent = this.dream.temperature.toFixed(2);
    element("speed-value").textContent = this.speed;
  }

  drive(driver) {
    this.driver = driver;
    for (const id of ["you", "controller"]) element(id).setAttribute("aria-pressed", id === driver);
    element("expects").textContent = driver === "you"
      ? "What the model expects next, if the present action is held"
      : "What the model expects next, with the controller's actions";
  }

  pause(paused) {
    this.paused = paused;
    element("pause").setAttribute("aria-pressed", paused);
    element("pause").textContent = paused ? "Continue" : "Pause";
    if (!paused) this.busy(true);
  }

  stepOnce() {
    this.pause(true);
    this.want(this.wants || "step");
  }

  want(what) {
    this.wants = what;
    this.busy(true);
  }

  /** Tells screen readers, and tests, whether the view is going to change without an input. */
  busy(busy) {
    element("play").setAttribute("aria-busy", busy);
  }

  /** The recorded start that is chosen; 0 is the first. */
  start() {
    const { starts } = this.agent.description;
    return Math.min(Math.max(Math.trunc(Number(element("start").value)) || 1, 1), starts) - 1;
  }

  /** Steps and draws, as long as the page is open. */
  async loop() {
    for (let due = 0; ; ) {
      const now = await nextFrame();
      const wanted = this.wants;
      this.wants = "";
      if (this.paused && !wanted) this.busy(false);
      if (wanted === "begin") {
        await this.begin();
      } else if (wanted === "step" || (this.shown && !this.paused && now >= due - EARLY)) {
        due = Math.max(due + 1000 / this.speed, now - 1000 / 60); // what was missed is lost
        if (!this.dream.ended) await this.step(now, wanted === "step");
      }
    }
  }

  async begin() {
    element("start").value = this.start() + 1;
    const seed = Math.max(Math.trunc(Number(element("seed").value)) || 0, 0);
    element("seed").value = seed;
    this.dream.begin(this.start(), seed);
    this.moments = [];
    await this.show(null);
    await this.showExpected();
  }

  async step(now, alone) {
    const { dream } = this;
    const action = this.driver === "you" ? this.controls.action() : await dream.act();
    await dream.step(action);
    this.moments = [...this.moments.filter((moment) => moment > now - 1000), now];
    await this.show(action);
    if (alone || dream.ended || dream.time % REFRESH === 0) await this.showExpected();
  }

  async show(action) {
    const { dream } = this;
    const [picture] = await this.agent.decode([dream.now.latent]);
    draw(element("frame"), picture);
    element("time").textContent = dream.time;
    element("reward").textContent = dream.time ? dream.reward.toFixed(2) : "–";
    element("return").textContent = dream.return.toFixed(1);
    element("termination").value = dream.termination;
    element("termination-value").textContent = dream.termination.toFixed(2);
    const [first, last] = [this.moments[0], this.moments.at(-1)];
    element("rate").textContent = this.moments.length > 1
      ? Math.round((this.moments.length - 1) * 1000 / (last - first)) : "–";
    this.meters.show(action);
    element("ended").hidden = !dream.ended;
    element("ended").textContent =
      `The model ends the episode after ${dream.time} steps, return ${dream.return.toFixed(1)}. Restart to play again.`;
  }

  async showExpected() {
    const held = this.driver === "you" ? this.controls.action() : null;
    const latents = this.dream.ended ? [] : await this.dream.expect(held, AHEAD, EVERY);
    const pictures = latents.length ? await this.agent.decode(latents) : [];
    pictures.forEach((picture, i) => draw(this.strip[i], picture));
  }
}
