// Keys, and buttons that act as keys, as actions of the environment.

const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
export const sign = (key) => SIGNS[key] ?? key;

export class Controls {
  /**
   * @param description of the agent (export.json).
   * @param pad the element that gets a button for each key.
   * @param onPress called at each press.
   */
  constructor({ controls, bounds }, pad, onPress) {
    Object.assign(this, { ...controls, bounds });
    this.pressed = []; // the latest is the last
    for (const key of Object.keys(controls.keys)) pad.append(this.button(key, onPress));
    document.addEventListener("keydown", (event) => {
      if (!(event.key in controls.keys) || event.ctrlKey || event.altKey || event.metaKey) return;
      if (pad.closest("[hidden]") || event.target.matches("input, [role=tab]")) return;
      event.preventDefault(); // the page would scroll
      if (!event.repeat) this.press(event.key, onPress);
    });
    document.addEventListener("keyup", (event) => this.release(event.key));
    window.addEventListener("blur", () => this.pressed.forEach((key) => this.release(key)));
  }

  button(key, onPress) {
    const button = document.createElement("button");
    button.textContent = sign(key);
    button.dataset.key = key;
    button.setAttribute("aria-label", this.meaning(key));
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.press(key, onPress);
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      button.addEventListener(end, () => this.release(key));
    }
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // of a long touch
    return button;
  }

  press(key, onPress) {
    this.release(key);
    this.pressed.push(key);
    onPress();
  }

  release(key) {
    this.pressed = this.pressed.filter((other) => other !== key);
  }

  /** What a key does: the action's number that it changes, and its value. */
  meaning(key) {
    const action = this.keys[key];
    const index = this.bounds.choice
      ? action.indexOf(1)
      : action.findIndex((value, i) => value !== this.rest[i]);
    return this.bounds.choice ? this.names[index] : `${this.names[index]} ${action[index]}`;
  }

  /** The action of the keys that are pressed now: of a choice the latest, else their sum. */
  action() {
    const keys = this.bounds.choice ? this.pressed.slice(-1) : this.pressed;
    const { low, high } = this.bounds;
    return Float32Array.from(this.rest, (rest, i) => {
      const sum = keys.reduce((total, key) => total + this.keys[key][i] - rest, rest);
      return Math.min(Math.max(sum, low[i]), high[i]);
    });
  }
}
