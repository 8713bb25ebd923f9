// The random numbers of worldmodels/worlds/noise.py: functions of (seed, stream, step, dimension),
// so that a seed gives the same dream here as in Python.

const MASK = (1n << 64n) - 1n;
const GOLDEN = 0x9e3779b97f4a7c15n;

/** SplitMix64's finaliser. */
function mix(x) {
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return x ^ (x >> 31n);
}

/** Noise of the episode of a seed; streams of one seed are independent. */
export class EpisodeNoise {
  constructor(seed, stream) {
    this.key = mix(mix((BigInt(seed) * GOLDEN) & MASK) ^ mix(BigInt(stream)));
  }

  /** 64 random bits for each dimension. */
  bits(step, size) {
    const first = BigInt(step) * BigInt(size) + 1n;
    return Array.from({ length: size }, (_, i) =>
      mix((this.key + (first + BigInt(i)) * GOLDEN) & MASK));
  }

  /** Uniform numbers in [0, 1). */
  uniform(step, size) {
    return Float32Array.from(this.bits(step, size), (bits) => Number(bits >> 40n) * 2 ** -24);
  }

  /** Standard normal numbers, by the transform of Box and Muller. */
  normal(step, size) {
    const half = (size + 1) >> 1;
    const numbers = new Float32Array(2 * half);
    this.bits(step, half).forEach((bits, i) => {
      const radius = Math.sqrt(-2 * Math.log((Number(bits >> 32n) + 0.5) * 2 ** -32));
      const angle = Number(bits & 0xffffffffn) * (2 * Math.PI * 2 ** -32);
      numbers[i] = radius * Math.cos(angle);
      numbers[half + i] = radius * Math.sin(angle);
    });
    return numbers.slice(0, size);
  }
}
