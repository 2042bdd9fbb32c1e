// Accuracy matrices, and the difference of two.

const mix = (from, to, share) => from.map((value, at) => Math.round(value + (to[at] - value) * share));
const luminance = colour =>
  [0.2126, 0.7152, 0.0722].reduce((sum, weight, at) => {
    const part = colour[at] / 255;
    return sum + weight * (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);

/** Black or white, whichever is easier to read on a colour. */
const inkOn = colour => (luminance(colour) > 0.179 ? "#000" : "#fff");

function heatColour(share) {
  const value = Math.min(1, Math.max(0, share));
  return isDark() ? mix([27, 36, 48], [120, 190, 250], value) : mix([240, 245, 250], [8, 72, 140], value);
}

function differenceColour(share) {
  const value = Math.min(1, Math.abs(share)),
    middle = isDark() ? [34, 40, 49] : [250, 249, 247];
  return mix(
    middle,
    share > 0 ? (isDark() ? [255, 160, 80] : [200, 80, 0]) : isDark() ? [90, 170, 240] : [0, 90, 160],
    value,
  );
}

/** A matrix of accuracies or of differences; the task just learnt is framed. */
function heat(rows, width, colour, text, words, widest = 58) {
  const tasks = rows[0].length,
    left = 34,
    cell = Math.min(widest, (width - left - 2) / tasks),
    tall = Math.min(30, Math.max(12, cell * 0.72)),
    top = 18;
  const svg = s("svg", {
    viewBox: `0 0 ${left + cell * tasks + 2} ${top + tall * rows.length + 2}`,
    width: left + cell * tasks + 2,
    height: top + tall * rows.length + 2,
    role: "img",
    "aria-label": words,
  });
  const small = cell < 24,
    digits = cell > 34 ? 1 : 0,
    written = Math.max(...rows.flat().map(value => textWidth(text(value, digits), 10.5))) < cell - 2;
  for (let task = 0; task < tasks; task++)
    if (!small || task % 2 === 0)
      svg.append(
        s(
          "text",
          {class: "heat-name", x: left + cell * (task + 0.5), y: 12, "text-anchor": "middle"},
          String(task + 1),
        ),
      );
  rows.forEach((row, after) => {
    if (!small || after % 2 === 0)
      svg.append(
        s(
          "text",
          {class: "heat-name", x: left - 6, y: top + tall * (after + 0.5) + 4, "text-anchor": "end"},
          after ? String(after) : "start",
        ),
      );
    row.forEach((value, task) => {
      const paint = colour(value),
        x = left + cell * task,
        y = top + tall * after;
      const box = s(
        "g",
        {},
        s(
          "title",
          {},
          `after ${after || "no"} task${after === 1 ? "" : "s"}, on task ${task + 1}: ${text(value, 2)}`,
        ),
        s("rect", {
          x: x + 0.5,
          y: y + 0.5,
          width: cell - 1,
          height: tall - 1,
          rx: 2,
          fill: Number.isFinite(value) ? `rgb(${paint})` : "none",
          class: task >= after ? "later" : "",
        }),
      );
      if (written)
        box.append(
          s(
            "text",
            {
              class: "heat-value",
              x: x + cell / 2,
              y: y + tall / 2 + 3.6,
              "text-anchor": "middle",
              fill: inkOn(paint),
            },
            text(value, digits),
          ),
        );
      svg.append(box);
    });
    if (after)
      svg.append(
        s("rect", {
          class: "own",
          x: left + cell * (after - 1) + 0.5,
          y: top + tall * after + 0.5,
          width: cell - 1,
          height: tall - 1,
          rx: 2,
        }),
      );
  });
  return svg;
}

const matrixTable = rows => ({
  heads: ["after task", ...rows[0].map((_, task) => `task ${task + 1}`)],
  rows: rows.map((row, after) => [
    after ? String(after) : "start",
    ...row.map(value => (Number.isFinite(value) ? value : "")),
  ]),
});

function smallMatrix(group) {
  return card({
    id: `matrix-${group.index}`,
    title: group.label,
    wide: false,
    draw: width => {
      const rows = matrix(group),
        bars = group.tasks > 1 ? lossBars(group, width) : "";
      return h(
        "div",
        {"data-m": group.m},
        heat(
          rows,
          width,
          heatColour,
          (value, digits) => percent(value, digits ? 1 : 0),
          `accuracy matrix of ${group.label}`,
        ),
        bars,
      );
    },
    table: () => matrixTable(matrix(group)),
  });
}

/** Points lost by each task since it was learnt, under its column. */
function lossBars(group, width) {
  const tasks = group.tasks,
    left = 34,
    cell = Math.min(58, (width - left - 2) / tasks),
    values = Array.from({length: tasks}, (_, task) => mean(lost(group, task)));
  const most = Math.max(10, ...values.map(Math.abs)),
    tall = 34;
  const svg = s("svg", {
    viewBox: `0 0 ${left + cell * tasks + 2} ${tall + 4}`,
    width: left + cell * tasks + 2,
    height: tall + 4,
    role: "img",
    "aria-label": `points lost per task: ${values.map(value => value.toFixed(1)).join(", ")}`,
  });
  svg.append(s("text", {class: "heat-name", x: left - 6, y: 12, "text-anchor": "end"}, "lost"));
  values.forEach((value, task) =>
    svg.append(
      s(
        "g",
        {},
        s("title", {}, `task ${task + 1}: ${value.toFixed(1)} points lost`),
        s("rect", {
          class: value > 0 ? "loss" : "gain",
          x: left + cell * task + 3,
          width: Math.max(1, cell - 6),
          y: 2,
          height: Math.max(1, (tall * Math.abs(value)) / most),
        }),
      ),
    ),
  );
  return svg;
}

/** The two groups whose difference is shown: those in the address, else the best of the OGD family and plain SGD. */
function pair() {
  const own = DATA.groups.filter(group => group.stream === streamIndex() && group.done.length);
  const aac = DATA.metrics.findIndex(metric => metric.name === "aac"),
    find = label => own.find(group => group.label === label);
  const best = [...own].sort((one, two) => two.cells[aac].mean - one.cells[aac].mean);
  const plain = own.find(group => group.method === "sgd");
  const a = find(state.a) ?? find("ogd+") ?? best.find(group => group !== plain) ?? best[0];
  return [a, find(state.b) ?? (plain !== a && plain) ?? best.find(group => group !== a)];
}

function drawMatrices() {
  const groups = sorted(visible().filter(group => group.done.length && group.tasks)),
    count = printing ? groups.length : Number(state.more || 0) ? 48 : 12,
    shown = groups.slice(0, count);
  const [a, b] = pair(),
    found = [];
  if (a && b && a !== b && a.tasks === b.tasks) found.push(differenceCard(a, b));
  const grid = h("div", {class: "grid"}, shown.map(smallMatrix));
  return [
    ...found,
    grid,
    shown.length < groups.length
      ? h(
          "p",
          {},
          `${shown.length} of ${groups.length} matrices; search or chips choose others. `,
          count < 48 ? button("Show 48", () => change({more: "1"})) : "",
        )
      : null,
  ];
}

function differenceCard(a, b) {
  const own = DATA.groups.filter(group => group.stream === streamIndex() && group.done.length);
  const choice = (name, now, text) =>
    h(
      "label",
      {class: "pick"},
      text,
      h(
        "select",
        {
          id: `difference-${name}`,
          onchange: event => {
            change({[name]: event.target.value});
            byId(`difference-${name}`)?.focus();
          },
        },
        own.slice(0, 300).map(group => h("option", {selected: group === now, value: group.label}, group.label)),
      ),
    );
  const [one, two] = [matrix(a), matrix(b)],
    rows = one.map((row, after) => row.map((value, task) => value - two[after][task]));
  const most = Math.max(0.01, ...rows.flat().filter(Number.isFinite).map(Math.abs));
  const signed = (value, digits) =>
    Number.isFinite(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(digits ? 1 : 0)}` : "–";
  const last = rows[rows.length - 1],
    kept = mean(last.slice(0, -1)),
    learnt = mean(rows.slice(1).map((row, at) => row[at]));
  const finding = `In the end ${a.label} has ${signed(kept, 1)} points on earlier tasks, and ${signed(learnt, 1)} on a task just learnt.`;
  return card({
    id: "difference",
    title: `Difference: ${a.label} minus ${b.label}`,
    text: `${finding} Orange: ${a.label} is ahead; blue: ${b.label}. Below the frames is memory, on them learning.`,
    controls: h("div", {class: "controls"}, choice("a", a, "show "), choice("b", b, "minus ")),
    draw: width =>
      heat(
        rows,
        Math.min(width, 860),
        value => differenceColour(value / most),
        signed,
        `accuracy of ${a.label} minus ${b.label}, in points`,
        92,
      ),
    table: () => matrixTable(rows),
  });
}
