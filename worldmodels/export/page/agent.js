// An exported agent: its description (export.json), its graphs and its first latents.

import * as ort from "./ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // more would need cross-origin isolation, which static hosts lack
ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href };

const TYPES = {
  F32: ["float32", Float32Array],
  I64: ["int64", BigInt64Array],
  I32: ["int32", Int32Array],
  BOOL: ["bool", Uint8Array],
};

async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}

/** The tensors of a safetensors file, by name. */
function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (!(dtype in TYPES)) throw new Error(`${name}: numbers of type ${dtype}`);
    const [type, Numbers] = TYPES[dtype];
    const bytes = buffer.slice(8 + length + begin, 8 + length + end);
    tensors[name] = new ort.Tensor(type, new Numbers(bytes), shape);
  }
  return tensors;
}

function floats(values, ...shape) {
  return new ort.Tensor("float32", Float32Array.from(values), shape);
}

export class Agent {
  /** Loads the agent beside this file. */
  static async load() {
    const description = await (await fetched("export.json")).json();
    const starts = readSafetensors(await (await fetched("starts.safetensors")).arrayBuffer());
    const sessions = {};
    for (const [name, { file }] of Object.entries(description.graphs)) {
      const model = await (await fetched(file)).arrayBuffer();
      sessions[name] = await ort.InferenceSession.create(new Uint8Array(model));
    }
    return new Agent(description, starts, sessions);
  }

  constructor(description, starts, sessions) {
    Object.assign(this, { description, starts, sessions });
    this.size = description.latent_size;
    this.side = description.frame_size;
    this.clip = description.clip_length;
    this.last = Promise.resolve();
  }

  /** Runs a graph; runs follow one another, as WebAssembly does one thing at a time. */
  run(graph, values) {
    const feeds = {};
    for (const { name } of this.description.graphs[graph].inputs) feeds[name] = values[name];
    this.last = this.last.catch(() => {}).then(() => this.sessions[graph].run(feeds));
    return this.last;
  }

  /**
   * Mean and logarithm of the variance of the posterior of a picture (ImageData); an encoder of
   * clips is given the clip of an episode's first frame, which repeats it.
   */
  async encode(picture) {
    const pixels = this.side * this.side;
    const image = new Float32Array(this.clip * 3 * pixels);
    for (let i = 0; i < pixels; i++) {
      for (let colour = 0; colour < 3; colour++) {
        image[colour * pixels + i] = picture.data[4 * i + colour] / 255;
      }
    }
    for (let frame = 1; frame < this.clip; frame++) image.copyWithin(3 * pixels * frame, 0, 3 * pixels);
    const shape = this.clip === 1 ? [1] : [1, this.clip];
    const found = await this.run("encoder", {
      image: floats(image, ...shape, 3, this.side, this.side),
    });
    return { mean: found.mean.data, logvar: found.logvar.data };
  }

  /** The pictures (ImageData) of latents. */
  async decode(latents) {
    const rows = latents.length;
    const latent = new Float32Array(rows * this.size);
    latents.forEach((one, row) => latent.set(one, row * this.size));
    const { image } = await this.run("decoder", { latent: floats(latent, rows, this.size) });
    const pixels = this.side * this.side;
    return latents.map((_, row) => {
      const picture = new ImageData(this.side, this.side);
      for (let i = 0; i < pixels; i++) {
        for (let colour = 0; colour < 3; colour++) {
          // A Uint8ClampedArray rounds, as to_frames of Python does.
          picture.data[4 * i + colour] = 255 * image.data[(3 * row + colour) * pixels + i];
        }
        picture.data[4 * i + 3] = 255;
      }
      return picture;
    });
  }

  /** The action of the controller. */
  async act({ latent, action, state }) {
    const found = await this.run("controller", {
      latent: floats(latent, 1, this.size),
      previous_action: floats(action, 1, action.length),
      ...state,
    });
    return found.action.data;
  }

  /** One step of the dynamics model: the next latent, state, reward and termination. */
  async predict({ latent, state }, action, uniform, normal, temperature) {
    const found = await this.run("dynamics", {
      latent: floats(latent, 1, this.size),
      action: floats(action, 1, action.length),
      uniform: floats(uniform, 1, this.size),
      normal: floats(normal, 1, this.size),
      temperature: floats([temperature]),
      ...state,
    });
    const next = {};
    for (const name of this.description.states) next[name] = found[`next_${name}`];
    return {
      latent: found.next_latent.data,
      state: next,
      action: Float32Array.from(action),
      reward: found.reward.data[0],
      termination: found.termination.data[0],
    };
  }
}
