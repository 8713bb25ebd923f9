// Shows the views that the program sends, and tells it what a person asks for.

import { Controls, sign } from "./controls.js";
import { ActionMeters } from "./meters.js";

const READABLE = 250; // milliseconds between two lists of influences, while time goes on

const element = (id) => document.getElementById(id);

class Link {
  constructor() {
    this.sending = Promise.resolve();
  }

  /** Asks the program for something; requests arrive in the order in which they were made. */
  ask(request) {
    this.sending = this.sending.then(() => this.post(request)).catch((error) => problem(error.message));
  }

  async post(request) {
    const answer = await fetch("ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
    });
    if (!answer.ok) throw new Error(await answer.text());
  }
}

/** The keys of a person, which the program turns into actions. */
class Keys extends Controls {
  constructor(about, pad, link) {
    super(about, pad, () => link.ask({ keys: this.pressed }));
    this.link = link;
  }

  release(key) {
    const held = this.pressed.length;
    super.release(key);
    if (this.pressed.length < held) this.link.ask({ keys: this.pressed });
  }
}

function problem(text) {
  element("problem").textContent = text;
  element("problem").hidden = !text;
}

const fixed = (number, digits) => number === null ? "not finite" : number.toFixed(digits);

class WatchView {
  constructor(about, link) {
    this.names = about.controls.names;
    this.link = link;
    this.paused = false;
    this.listed = 0;
    const keys = new Keys(about, element("pad"), link);
    this.meters = new ActionMeters(keys, element("actions"));
    this.lists = this.names.map((name) => this.influenceList(name));
    element("agent").textContent = about.name;
    element("environment").textContent =
      `${about.environment}, ${about.engine}, ${about.rate} steps/s` + (about.run ? `, run ${about.run}` : "");
    for (const id of ["insight", "expects", "influences", "controller"]) element(id).hidden = !about.agent;
    element("help").textContent =
      `Keys: ${Object.keys(keys.keys).map(sign).join(" ")} drive and take over, space pauses, S steps,`
      + ` R restarts, N begins the next episode${about.agent ? ", C hands back to the controller" : ""}.`;
    this.listen();
  }

  influenceList(name) {
    const part = document.createElement("div");
    const title = document.createElement("h3");
    const list = document.createElement("ol");
    title.textContent = name;
    part.append(title, list);
    element("lists").append(part);
    return list;
  }

  listen() {
    const asks = {
      you: () => ({ drive: "you" }),
      controller: () => ({ drive: "controller" }),
      pause: () => ({ pause: !this.paused }),
      step: () => ({ step: true }),
      restart: () => ({ restart: true }),
      skip: () => ({ skip: true }),
    };
    for (const [id, request] of Object.entries(asks)) {
      element(id).addEventListener("click", () => this.link.ask(request()));
    }
    const keys = { " ": "pause", s: "step", r: "restart", n: "skip", c: "controller" };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input")) return;
      if (event.key === " " && event.target.matches("button")) return; // presses that button
      if (!(event.key in keys) || element(keys[event.key]).hidden) return;
      event.preventDefault();
      element(keys[event.key]).click();
    });
  }

  show(view) {
    this.paused = view.paused;
    element("picture").src = view.picture;
    element("time").textContent = view.step;
    element("reward").textContent = view.step ? fixed(view.reward, 2) : "–";
    element("return").textContent = fixed(view.return, 1);
    element("seed").textContent = view.seed;
    for (const id of ["you", "controller"]) element(id).setAttribute("aria-pressed", id === view.driver);
    element("pause").setAttribute("aria-pressed", view.paused);
    element("pause").textContent = view.paused ? "Continue" : "Pause";
    element("recorded").hidden = view.recorded === null;
    element("recorded").textContent = `Recorded episodes: ${view.recorded}`;
    const state = view.ended
      ? `The episode is ${view.ended} after ${view.step} steps, return ${fixed(view.return, 1)}.`
      : view.waiting ? "Press a key to begin." : "";
    element("state").hidden = !state;
    element("state").textContent = state;
    this.meters.show(view.action);
    if (view.influences) this.showInsight(view);
    document.body.dataset.ready = "";
  }

  showInsight(view) {
    element("frame").src = view.frame;
    element("reconstruction").src = view.reconstruction;
    if (view.expected) element("expected").src = view.expected;
    element("termination").value = view.termination ?? 0;
    element("termination-value").textContent = fixed(view.termination, 2);
    const now = performance.now();
    if (now < this.listed + READABLE && !view.paused && !view.ended) return;
    this.listed = now;
    view.influences.forEach((found, i) => {
      const most = Math.max(...found.map(({ amount }) => Math.abs(amount ?? 0)), 1e-9);
      this.lists[i].replaceChildren(...found.map((one) => this.influence(one, most)));
    });
  }

  influence({ feature, amount }, most) {
    const row = document.createElement("li");
    const name = document.createElement("span");
    const bar = document.createElement("span");
    const part = document.createElement("span");
    const value = document.createElement("output");
    name.textContent = feature;
    bar.className = "bar";
    part.className = amount < 0 ? "minus" : "plus";
    part.style.width = `${50 * Math.abs(amount ?? 0) / most}%`;
    bar.append(part);
    value.textContent = fixed(amount, 2);
    row.append(name, bar, value);
    return row;
  }
}

async function main() {
  const view = new WatchView(await (await fetch("about.json")).json(), new Link());
  const events = new EventSource("events");
  let ended = false;
  events.addEventListener("message", ({ data }) => {
    problem("");
    view.show(JSON.parse(data));
  });
  events.addEventListener("end", () => {
    ended = true;
    events.close();
    problem("The program has ended.");
  });
  events.addEventListener("error", () => {
    if (!ended) problem("No connection to the program, or too many pages are open.");
  });
}

main().catch((error) => problem(`This page cannot run: ${error.message}`));
