// Cost against accuracy, with the line of those that no other beats.

/** Whether runs of this stream measured the time of a step, so that there is a price in that of plain SGD. */
const relative = () => DATA.groups.some(group => group.stream === streamIndex() && group.times !== undefined);
const byTime = () => state.cost === "seconds" && relative();

function costPoints() {
  const at = name => DATA.metrics.findIndex(metric => metric.name === name),
    [aac, x] = [at("aac"), at("memory")],
    times = byTime();
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
    const dense = times ? group.dense.work : group.dense.bytes;
    if (Number.isFinite(dense)) found.push({group, x: dense, y: 100 * group.cells[aac].mean, sd: NaN, ghost: true});
  }
  return found;
}

/** What the prices are, and what one must know about some of them. */
function priceText() {
  if (!byTime())
    return relative() ? "" : " There is no price in time: the runs did not measure what their processors worked, or there is no plain SGD to compare with.";
  const told = new Map();
  for (const group of visible())
    if (group.priced) told.set(group.priced, [...(told.get(group.priced) ?? []), group.label]);
  const notes = [...told].map(([text, labels]) => `${labels.length > 6 ? `${labels.length} methods` : labels.join(", ")}: ${text}.`);
  return [
    " Processor time of a training step, in that of plain SGD's (median over seeds).",
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
    memory = !byTime(),
    format = value => (memory ? sizeText(value) : `${short(value)}x`);
  if (!items.length) return [h("p", {class: "soft"}, "No finished run to show.")];
  const pick = (name, text) =>
    h(
      "label",
      {class: "pick"},
      h("input", {
        type: "radio",
        name: "cost",
        checked: (name === "memory") === memory,
        onchange: () => change({cost: name}),
      }),
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
        relative() ? pick("seconds", "processor time of a step") : null,
        relative() ? pick("memory", "memory of the method") : null,
      ),
      draw: width => costChart(width, items, format),
      table: () => ({
        heads: ["method", "accuracy, %", "spread", memory ? "bytes" : "times SGD", "kind", "remark"],
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
  const sound = items.filter(item => !item.group.warning), // who learnt nothing does not set the scale
    seen = sound.length ? sound : items;
  const ys = seen.flatMap(item => [item.y, item.y - (item.sd || 0), item.y + (item.sd || 0)]);
  const {svg, across, up, box} = frame({
    width,
    height: 360,
    x: [least, most, true],
    y: fitting(ys, 100 * DATA.range[0], 100 * DATA.range[1]),
    xText: byTime() ? "processor time of a step, x SGD (log)" : "memory, caches included (log)",
    yText: "average accuracy, %",
    label: `accuracy against ${byTime() ? "processor time" : "memory"} of ${items.length} methods`,
    xFormat: format,
    yFormat: value => String(Number(value.toPrecision(4))),
  });
  const below = item => up(item.y) > box.bottom;
  const place = item => [item.x > 0 ? across(item.x) : box.left + 8, below(item) ? box.bottom - 28 : up(item.y)];
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
      text: item.ghost
        ? `${item.group.label}, dense as published`
        : item.group.label + (below(item) ? ` ↓ ${item.y.toFixed(1)} %` : ""),
      title: `${item.group.label}${item.ghost ? ", dense as published" : ""}: ${item.y.toFixed(1)} %, ${format(item.x)}`,
      bar: Number.isFinite(item.sd) && !below(item) ? [up(item.y - item.sd), up(item.y + item.sd)] : null,
    })),
    box,
  );
  return svg;
}
