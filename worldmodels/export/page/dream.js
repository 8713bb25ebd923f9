// An episode in the dynamics model, as DreamWorld of worldmodels/worlds/dream.py makes it.

import { EpisodeNoise } from "./noise.js";

const START = 1, MIXTURE = 2, NORMAL = 3; // the streams of worldmodels/worlds/dream.py
const NO_NOISE = 0.001; // a temperature at which the likeliest component is drawn

export class Dream {
  constructor(agent) {
    this.agent = agent;
    this.temperature = agent.description.temperature;
    this.begin(0, 0);
  }

  /** Starts an episode from a recorded start (0 is the first) with the noise of a seed. */
  begin(start, seed) {
    const { size, starts, description } = this.agent;
    const row = (part) => part.data.subarray(start * size, (start + 1) * size);
    const latent = Float32Array.from(row(starts.mean));
    if (description.samples_first_latents) {
      const noise = new EpisodeNoise(seed, START).normal(1, size);
      row(starts.logvar).forEach((logvar, i) => { latent[i] += Math.exp(0.5 * logvar) * noise[i]; });
    }
    this.beginAt(latent, seed);
  }

  /** Starts an episode from a latent with the noise of a seed. */
  beginAt(latent, seed) {
    const { description, starts } = this.agent;
    const state = {};
    for (const name of description.states) state[name] = starts[name];
    this.now = { latent, state, action: new Float32Array(description.action_size) };
    this.uniform = new EpisodeNoise(seed, MIXTURE);
    this.normal = new EpisodeNoise(seed, NORMAL);
    this.time = 0;
    this.reward = 0;
    this.return = 0;
    this.termination = 0;
  }

  get ended() {
    return this.termination > this.agent.description.termination_threshold;
  }

  /** The controller's action. */
  act() {
    return this.agent.act(this.now);
  }

  /** One step; with a model that predicts no rewards, each of the game's steps is worth 1. */
  async step(action) {
    const { agent, time } = this;
    const uniform = this.uniform.uniform(time, agent.size);
    const normal = this.normal.normal(time, agent.size);
    this.now = await agent.predict(this.now, action, uniform, normal, this.temperature);
    this.termination = this.now.termination;
    const { frame_skip, predicts_reward } = agent.description;
    this.reward = predicts_reward ? this.now.reward : frame_skip * !this.ended;
    this.return += this.reward;
    this.time += 1;
  }

  /**
   * The latents that the model thinks likeliest, `every` steps apart.
   *
   * @param held the action of all steps; null for the controller's.
   */
  async expect(held, count, every) {
    const { agent } = this;
    const uniform = new Float32Array(agent.size).fill(0.5);
    const normal = new Float32Array(agent.size);
    const latents = [];
    let at = this.now;
    for (let step = 1; step <= count * every; step++) {
      const action = held ?? await agent.act(at);
      at = await agent.predict(at, action, uniform, normal, NO_NOISE);
      if (step % every === 0) latents.push(at.latent);
    }
    return latents;
  }
}
