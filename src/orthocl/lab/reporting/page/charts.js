// Charts as SVG: scales, axes, lines with bands, points.

const MARKERS = {
  o: "M0-3.6A3.6 3.6 0 1 0 0 3.6A3.6 3.6 0 1 0 0-3.6Z",
  s: "M-3.2-3.2H3.2V3.2H-3.2Z",
  D: "M0-4.4L4.4 0L0 4.4L-4.4 0Z",
  "^": "M0-4.2L4 3.2H-4Z",
  v: "M0 4.2L4-3.2H-4Z",
  P: "M-1.3-4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",
  X: "M-4-2.4L-2.4-4L0-1.6L2.4-4L4-2.4L1.6 0L4 2.4L2.4 4L0 1.6L-2.4 4L-4 2.4L-1.6 0Z",
  "*": "M0-4.8L1.3-1.5L4.7-1.4L2 .8L2.9 4.2L0 2.2L-2.9 4.2L-2 .8L-4.7-1.4L-1.3-1.5Z",
};
const DASHES = ["", "6 3", "2 2.5", "8 3 2 3"];

/** A scale from values to pixels, with its ticks. */
function scale(low, high, from, to, log = false) {
  const forward = log ? Math.log10 : value => value;
  const [start, end] = [forward(low), forward(high)];
  const place = value => from + (to - from) * (end === start ? 0.5 : (forward(value) - start) / (end - start));
  return Object.assign(place, {ticks: log ? logTicks(low, high) : linearTicks(low, high), low, high});
}

function linearTicks(low, high, count = 5) {
  const raw = (high - low) / count || 1,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find(one => one * power >= raw) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    found.push(Number((at * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const parts = high / low <= 200 ? [1, 2, 5] : [1];
  for (let power = first; power <= last; power += every)
    for (const part of parts)
      if (part * 10 ** power >= low * 0.999 && part * 10 ** power <= high * 1.001) found.push(part * 10 ** power);
  return found;
}

/** Width of a text in a chart, in pixels. */
function textWidth(text, size = 12) {
  PEN.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return PEN.measureText(text).width;
}
const PEN = document.createElement("canvas").getContext("2d");

/** An empty plot with axes: returns the svg, its scales and its box. */
function frame({
  width,
  height = 300,
  right = 16,
  x,
  y,
  xText,
  yText,
  label,
  xFormat = short,
  yFormat = short,
  xTicks,
}) {
  const numbers = scale(y[0], y[1], 0, 1, y[2]).ticks.map(tick => textWidth(String(yFormat(tick)), 11.5));
  const left = Math.max(52, 29 + Math.max(0, ...numbers));
  const box = {left, top: 12, right: width - right, bottom: height - 40};
  const svg = s("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": label,
    tabindex: "0",
  });
  const across = scale(x[0], x[1], box.left, box.right, x[2]),
    up = scale(y[0], y[1], box.bottom, box.top, y[2]);
  const axes = s("g", {class: "axes"});
  for (const tick of up.ticks)
    axes.append(
      s("line", {class: "grid", x1: box.left, x2: box.right, y1: up(tick), y2: up(tick)}),
      s("text", {x: box.left - 7, y: up(tick) + 4, "text-anchor": "end"}, yFormat(tick)),
    );
  const ticks = (xTicks ?? across.ticks).map(tick => [across(tick), String(xFormat(tick))]);
  const widest = 8 + Math.max(0, ...ticks.map(([, text]) => textWidth(text, 11.5)));
  const closest = Math.min(...ticks.slice(1).map(([place], at) => place - ticks[at][0]), width);
  const every = Math.ceil(widest / closest);
  for (const [at, [place, text]] of ticks.entries()) {
    if (at % every) continue;
    axes.append(
      s("line", {class: "tick", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 4}),
      s("text", {x: place, y: box.bottom + 17, "text-anchor": "middle"}, text),
    );
  }
  axes.append(
    s("line", {class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}),
    s("text", {class: "name", x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle"}, xText),
    s(
      "text",
      {class: "name", transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle"},
      yText,
    ),
  );
  svg.append(axes);
  return {svg, across, up, box};
}

const path = points => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** Names at the ends of lines, pushed apart so that none covers another. */
function endLabels(svg, names, box, x) {
  const gap = 13,
    sorted = [...names].sort((a, b) => a.y - b.y);
  let last = -1e9;
  for (const one of sorted) {
    one.at = Math.max(one.y, last + gap);
    last = one.at;
  }
  let next = box.bottom + 4 + gap;
  for (const one of sorted.reverse()) {
    one.at = Math.min(one.at, next - gap);
    next = one.at;
  }
  for (const one of sorted)
    svg.append(
      s(
        "g",
        {"data-m": one.m},
        s("line", {class: "leader", x1: x + 5, y1: one.y, x2: x + 14, y2: one.at, style: `--c:${one.colour}`}),
        s("text", {class: "end", x: x + 17, y: one.at + 4}, one.text),
      ),
    );
}

/** A text in lines that have room, broken at its spaces. */
function broken(text, room) {
  const found = [];
  for (const word of text.split(" ")) {
    const longer = `${found[found.length - 1]} ${word}`;
    if (found.length && textWidth(longer) <= room) found[found.length - 1] = longer;
    else found.push(word);
  }
  return found;
}

/** Names below a chart, in rows, where there is no room for them at the ends of the lines. */
function legend(svg, lines, width, height) {
  let [x, y] = [8, height + 14];
  for (const line of lines) {
    const wide = 16 + textWidth(line.text) + 14;
    if (x > 8 && x + wide > width) [x, y] = [8, y + 17];
    svg.append(
      s(
        "g",
        {class: "series", "data-m": line.m, style: `--c:${line.colour}`},
        s("path", {class: "dot", d: MARKERS[line.marker] ?? MARKERS.o, transform: `translate(${x + 5} ${y - 4})`}),
        ...broken(line.text, width - x - 16).map((text, at) => {
          if (at) y += 14;
          return s("text", {class: "end", x: x + 14, y}, text);
        }),
      ),
    );
    x += wide;
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${y + 8}`);
  svg.setAttribute("height", y + 8);
}

const MOST_NAMES = 16;

/** Lines over whole numbers, such as tasks, with bands; hovering or arrow keys read all lines at one place. */
function lineChart({
  width,
  height = 320,
  lines,
  xText,
  yText,
  label,
  y,
  yFormat = value => String(Number(value.toPrecision(4))),
  unit = "",
  limit,
  limitText,
  start = 1,
}) {
  const values = lines
    .flatMap(line => line.points.flatMap(point => [point.low ?? point.y, point.high ?? point.y, point.y]))
    .filter(Number.isFinite);
  const end = Math.max(start + 1, ...lines.flatMap(line => line.points.map(point => point.x)));
  const longest = 24 + Math.max(0, ...lines.map(line => textWidth(line.text)));
  const named = lines.length <= MOST_NAMES && longest < 0.3 * width && 13 * lines.length < height - 40;
  const range = y(values);
  const {svg, across, up, box} = frame({
    width,
    height,
    right: named ? longest : 14,
    x: [start, end],
    y: range,
    xText,
    yText,
    label,
    yFormat,
    xTicks: Array.from({length: end - start + 1}, (_, at) => start + at),
  });
  if (limit !== undefined && limit >= range[0] && limit <= range[1])
    svg.append(
      s("line", {class: "limit", x1: box.left, x2: box.right, y1: up(limit), y2: up(limit)}),
      s("text", {class: "limit-text", x: box.left + 6, y: up(limit) - 5}, limitText),
    );
  const crowded = lines.length > 40,
    names = [];
  svg.classList.toggle("many", lines.length > 5);
  for (const line of lines) {
    const points = line.points.filter(point => Number.isFinite(point.y) && (!range[2] || point.y > 0));
    if (!points.length) continue;
    const group = s("g", {class: "series", "data-m": line.m, style: `--c:${line.colour}`});
    const band = points.filter(point => Number.isFinite(point.low));
    if (band.length > 1 && !crowded)
      group.append(
        s("path", {
          class: "band",
          d:
            path([
              ...band.map(point => [across(point.x), up(point.high)]),
              ...[...band].reverse().map(point => [across(point.x), up(point.low)]),
            ]) + "Z",
        }),
      );
    group.append(
      s("path", {
        class: "line",
        d: path(points.map(point => [across(point.x), up(point.y)])),
        "stroke-dasharray": DASHES[line.dash % 4],
      }),
    );
    if (!crowded)
      for (const point of points)
        group.append(
          s("path", {
            class: "dot",
            d: MARKERS[line.marker] ?? MARKERS.o,
            transform: `translate(${across(point.x).toFixed(1)} ${up(point.y).toFixed(1)})`,
          }),
        );
    for (const seed of line.seeds ?? [])
      group.append(
        s("path", {
          class: "seed",
          d: path(seed.filter(point => Number.isFinite(point.y)).map(point => [across(point.x), up(point.y)])),
        }),
      );
    svg.append(group);
    const last = points[points.length - 1];
    names.push({y: up(last.y), m: line.m, colour: line.colour, text: line.text});
  }
  if (named) endLabels(svg, names, box, box.right);
  else if (lines.length <= MOST_NAMES) legend(svg, lines, width, height);
  const holder = h("div", {class: "holder"}, svg);
  reading(holder, svg, {lines, across, box, start, end, xText, format: value => yFormat(value) + unit});
  return holder;
}

/** The value of every line at one place, beside the pointer. */
function reading(holder, svg, {lines, across, box, start, end, xText, format}) {
  const cursor = s("line", {class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden"});
  const tip = h("div", {class: "tip", hidden: true});
  svg.append(cursor);
  holder.append(tip);
  let at = null;
  const show = place => {
    at = Math.min(end, Math.max(start, place));
    const x = across(at);
    const found = lines
      .map(line => ({line, point: line.points.find(point => point.x === at)}))
      .filter(one => one.point && Number.isFinite(one.point.y))
      .sort((a, b) => b.point.y - a.point.y);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    tip.replaceChildren(
      h("b", {}, `${xText} ${at}`),
      ...found
        .slice(0, 16)
        .map(({line, point}) =>
          h(
            "div",
            {},
            swatch(line),
            line.text,
            h(
              "span",
              {class: "number"},
              format(point.y) + (Number.isFinite(point.sd) ? ` ± ${format(point.sd)}` : ""),
            ),
          ),
        ),
      found.length > 16 ? h("div", {class: "soft"}, `and ${found.length - 16} more`) : "",
    );
    tip.hidden = false;
    const share = svg.clientWidth / svg.viewBox.baseVal.width || 1;
    const left = x * share + 14;
    tip.style.left = `${left + tip.offsetWidth > holder.clientWidth ? Math.max(0, x * share - tip.offsetWidth - 14) : left}px`;
  };
  const hide = () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
    at = null;
  };
  svg.addEventListener("pointermove", event => {
    const area = svg.getBoundingClientRect(),
      x = ((event.clientX - area.left) * svg.viewBox.baseVal.width) / area.width;
    show(Math.round(start + ((end - start) * (x - box.left)) / (box.right - box.left)));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", event => {
    const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (move) {
      event.preventDefault();
      show(at === null ? (move > 0 ? start : end) : at + move);
    }
    if (event.key === "Escape") hide();
  });
}

/** Points with names; names that would cover another name or point are left to hovering. */
function points(svg, items, box) {
  const taken = items.map(({x, y}) => ({x1: x - 6, x2: x + 6, y1: y - 6, y2: y + 6}));
  for (const item of items) {
    const group = s(
      "g",
      {class: item.ghost ? "series ghost" : "series", "data-m": item.m, style: `--c:${item.colour}`},
      s("title", {}, item.title),
    );
    if (item.bar)
      group.append(s("line", {class: "whisker", x1: item.x, x2: item.x, y1: item.bar[0], y2: item.bar[1]}));
    group.append(
      s("path", {
        class: "point",
        d: MARKERS[item.marker] ?? MARKERS.o,
        transform: `translate(${item.x.toFixed(1)} ${item.y.toFixed(1)}) scale(${item.size ?? 1.5})`,
      }),
    );
    const wide = textWidth(item.text);
    for (const [anchor, from, down] of [
      ["start", item.x + 9, 0],
      ["end", item.x - 9, 0],
      ["middle", item.x, -15],
      ["middle", item.x, 15],
    ]) {
      const area = {x1: from - {start: 0, middle: wide / 2, end: wide}[anchor], y1: item.y + down - 7, y2: item.y + down + 7};
      area.x2 = area.x1 + wide;
      const free =
        area.x1 > box.left &&
        area.x2 < box.right + 8 &&
        taken.every(other => area.x2 < other.x1 || area.x1 > other.x2 || area.y2 < other.y1 || area.y1 > other.y2);
      if (item.text && free) {
        taken.push(area);
        group.append(s("text", {class: "end", x: from, y: item.y + down + 4, "text-anchor": anchor}, item.text));
        break;
      }
    }
    svg.append(group);
  }
}
