// Cost against accuracy, with the line of those that no other beats.

/** Time is that of plain SGD on the same stream where it can be compared with it, else by the clock on the wall. */
const relative = () => DATA.groups.some(group => group.stream === streamIndex() && group.times !== undefined);

function costPoints() {
  const at = name => DATA.metrics.findIndex(metric => metric.name === name),
    [aac, x] = [at("aac"), at(state.cost)],
    times = state.cost === "seconds" && relative();
  const price = group => (times ? (group.times ?? NaN) : group.cells[x]?.mean);
  const groups = visible().filter(
    group => group.done.length && Number.isFinite(price(group)) && Number.isFinite(group.cells[aac].mean),
  );
  const found = groups.map(group => ({
    group,
    x: price(group),
    y: 100 * group.cells[aac].mean,
    sd: 100 * group.cells[aac].spread,
  }));
  for (const group of groups) {
    if (!group.dense) continue;
    const dense = state.cost === "memory" ? group.dense.bytes : times ? group.dense.work : NaN;
    if (Number.isFinite(dense)) found.push({group, x: dense, y: 100 * group.cells[aac].mean, sd: NaN, ghost: true});
  }
  return found;
}

/** What the prices are, and what one must know about some of them. */
function priceText() {
  if (state.cost === "memory") return "";
  if (!relative())
    return " Time by the clock on the wall: a busy machine moves a point to the right. With plain SGD on the same stream it would be relative to that.";
  const told = new Map();
  for (const group of visible())
    if (group.priced) told.set(group.priced, [...(told.get(group.priced) ?? []), group.label]);
  const notes = [...told].map(([text, labels]) => `${labels.length > 6 ? `${labels.length} methods` : labels.join(", ")}: ${text}.`);
  return [
    " Time of training against plain SGD's, each counted in the run's own evaluations, which are the same work for all: a busy machine does not matter (median over seeds).",
    ...notes.slice(0, 4),
  ].join(" ");
}

/** The points that no other beats in both price and accuracy, from the cheapest to the dearest. */
function pareto(items) {
  const found = [];
  for (const item of [...items].filter(item => !item.ghost).sort((a, b) => a.x - b.x || b.y - a.y))
    if (!found.length || item.y > found[found.length - 1].y) found.push(item);
  return found;
}

function drawCost() {
  const items = costPoints(),
    memory = state.cost === "memory",
    format = value => (memory ? sizeText(value) : relative() ? `${short(value)}x` : timeText(value));
  if (!items.length) return [h("p", {class: "soft"}, "No finished run to show.")];
  const pick = (name, text) =>
    h(
      "label",
      {class: "pick"},
      h("input", {type: "radio", name: "cost", checked: state.cost === name, onchange: () => change({cost: name})}),
      text,
    );
  const ghost = items.some(item => item.ghost)
    ? memory
      ? " Hollow: dense OGD as published, which keeps an explicit gradient of all weights for every remembered output (counted)."
      : " Hollow: dense OGD as published, from its multiply-adds with the memory half full, 2 × tangents × weights a step beside 3 × batch × weights of a plain step (counted, not measured)."
    : "";
  return [
    card({
      id: "cost-accuracy",
      title: `Accuracy against ${memory ? "memory" : "time"}`,
      text: `Up and to the left is better; the line joins the methods that no other beats in both.${priceText()}${ghost}`,
      controls: h(
        "div",
        {class: "controls", role: "group", "aria-label": "price"},
        pick("seconds", relative() ? "training time" : "time of a run"),
        pick("memory", "memory of the method"),
      ),
      draw: width => costChart(width, items, format),
      table: () => ({
        heads: ["method", "accuracy, %", "spread", memory ? "bytes" : relative() ? "times SGD" : "seconds", "kind", "remark"],
        rows: items.map(item => [
          item.group.label,
          item.y,
          Number.isFinite(item.sd) ? item.sd : "",
          item.x,
          item.ghost ? "dense OGD as published, counted" : "measured",
          (!memory && !item.ghost && item.group.priced) || "",
        ]),
      }),
    }),
  ];
}

function costChart(width, items, format) {
  const positive = items.filter(item => item.x > 0).map(item => item.x),
    none = items.some(item => !(item.x > 0));
  const low = Math.min(...positive, 1e300),
    high = Math.max(...positive, 1e-300),
    least = positive.length ? low / (none ? 12 : 1.5) : 0.1,
    most = positive.length ? high * 1.6 : 1;
  const ys = items.flatMap(item => [item.y, item.y - (item.sd || 0), item.y + (item.sd || 0)]);
  const {svg, across, up, box} = frame({
    width,
    height: 360,
    x: [least, most, true],
    y: fitting(ys, 100 * DATA.range[0], 100 * DATA.range[1]),
    xText: state.cost === "memory" ? "memory (log)" : relative() ? "training time, x SGD (log)" : "time of a run (log)",
    yText: "average accuracy, %",
    label: `accuracy against ${state.cost} of ${items.length} methods`,
    xFormat: format,
    yFormat: value => String(Number(value.toPrecision(4))),
  });
  const place = item => [item.x > 0 ? across(item.x) : box.left + 8, up(item.y)];
  if (none) svg.append(s("text", {class: "limit-text", x: box.left + 4, y: box.bottom - 6}, "none"));
  const front = pareto(items);
  if (front.length > 1)
    svg.append(
      s("path", {
        class: "pareto",
        d: path(
          front.flatMap((item, at) =>
            at ? [[place(item)[0], place(front[at - 1])[1]], place(item)] : [place(item)],
          ),
        ),
      }),
    );
  points(
    svg,
    items.map(item => ({
      x: place(item)[0],
      y: place(item)[1],
      m: item.group.m,
      colour: item.group.colour,
      marker: item.group.marker,
      ghost: item.ghost,
      text: item.ghost ? `${item.group.label}, dense as published` : item.group.label,
      title: `${item.group.label}${item.ghost ? ", dense as published" : ""}: ${item.y.toFixed(1)} %, ${format(item.x)}`,
      bar: Number.isFinite(item.sd) ? [up(item.y - item.sd), up(item.y + item.sd)] : null,
    })),
    box,
  );
  return svg;
}
