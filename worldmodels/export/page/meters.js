// The numbers of an action, as meters.

export class ActionMeters {
  /**
   * @param controls with the names and bounds of the numbers.
   * @param parent the element that gets a meter for each.
   */
  constructor({ names, bounds }, parent) {
    this.meters = names.map((name, i) => {
      const label = document.createElement("label");
      const value = document.createElement("output");
      const meter = document.createElement("meter");
      meter.min = bounds.low[i];
      meter.max = bounds.high[i];
      label.append(`${name} `, value, meter);
      parent.append(label);
      return { meter, value };
    });
  }

  /** Shows an action; zeros where there is none. */
  show(action) {
    this.meters.forEach(({ meter, value }, i) => {
      meter.value = action?.[i] ?? 0;
      value.textContent = meter.value.toFixed(2);
    });
  }
}
