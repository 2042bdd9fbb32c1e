// Curves, accuracy matrices, forgetting and cost.

const lineOf = (group, points, seeds) => ({text: group.label, m: group.m, colour: group.colour, marker: group.marker, dash: group.alike, points, seeds});

/** Mean and spread over seeds as points of a line, in percent and within the range that is possible. */
function bandPoints(perSeed, from = 1) {
  const length = Math.min(...perSeed.map(values => values.length));
  const [low, high] = DATA.range.map(value => 100 * value);
  return Array.from({length}, (_, at) => {
    const values = perSeed.map(seed => 100 * seed[at]), middle = mean(values), sd = spread(values);
    return {x: from + at, y: middle, sd, low: Math.max(low, middle - sd), high: Math.min(high, middle + sd)};
  });
}

/** Per seed, what a curve shows: the mean over tasks so far, or one task from when it was learnt. */
function curveSeeds(group) {
  const task = Number(state.task) - 1, tasks = group.tasks;
  if (state.curve === "memorised") {
    const all = group.memorised ? unpack(group.memorised) : [];
    return all.length ? [Array.from({length: tasks}, (_, at) => at < task ? NaN : all[at * (at + 1) / 2 + task])] : [];
  }
  return group.done.map((_, seed) => Array.from({length: tasks}, (_, at) => {
    const after = at + 1;
    if (state.curve === "task") return after <= task ? NaN : accuracies(group, after, task)[seed];
    return mean(Array.from({length: after}, (_, one) => accuracies(group, after, one)[seed]));
  }));
}

const MOST_LINES = 48;

/** The groups that charts of lines show: the first ones, in the order of the table. */
const drawn = (wanted = group => group.done.length && group.tasks) => sorted(visible().filter(wanted)).slice(0, MOST_LINES);
const cut = () => visible().length > MOST_LINES ? ` Of ${visible().length} settings the first ${MOST_LINES} in the order of the table are drawn: sort or filter to choose others.` : "";

function curveLines() {
  return drawn().map(group => {
    const perSeed = curveSeeds(group);
    return perSeed.length ? lineOf(group, bandPoints(perSeed), state.seeds && perSeed.map(seed => seed.map((y, at) => ({x: at + 1, y: 100 * y})))) : null;
  }).filter(line => line && line.points.some(point => Number.isFinite(point.y)));
}

const linesTable = (lines, first, start = 1) => ({heads: ["method", ...Array.from({length: Math.max(0, ...lines.map(line => line.points.length))}, (_, at) => `${first} ${start + at}`)],
  rows: lines.map(line => [line.text, ...line.points.map(point => Number.isFinite(point.y) ? point.y : "")])});

function fitting(values, floor, top) {
  const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || 1);
  return [Math.max(floor, low - room), Math.min(top, high + room)];
}

function drawCurves() {
  const tasks = Math.max(1, ...visible().map(group => group.tasks)), has = visible().some(group => group.memorised);
  const chosen = {sofar: "mean accuracy on the tasks so far", task: `accuracy on task ${state.task}`, memorised: `accuracy on the remembered samples of task ${state.task}`}[state.curve];
  const pick = (name, text) => h("label", {class: "pick"}, h("input", {type: "radio", name: "curve", checked: state.curve === name, onchange: () => change({curve: name})}), text);
  const slider = h("label", {class: "pick"}, `task ${Math.min(tasks, state.task)} `, h("input", {type: "range", id: "task", min: 1, max: tasks, value: state.task, "aria-label": "task",
    oninput: event => { change({task: event.target.value, curve: state.curve === "sofar" ? "task" : state.curve}); byId("task")?.focus(); }}));
  const controls = h("div", {class: "controls", role: "group", "aria-label": "what the curves show"}, pick("sofar", "tasks so far"), pick("task", "one task"), has ? pick("memorised", "its remembered samples") : null, slider,
    h("label", {class: "pick"}, h("input", {type: "checkbox", checked: state.seeds !== "", onchange: event => change({seeds: event.target.checked ? "1" : ""})}), "each seed"));
  const lines = curveLines();
  return [card({id: "accuracy-curves", title: "Accuracy through the tasks", controls,
    text: `Test: ${chosen}, after each task. Bands are one standard deviation over seeds. Hover, or focus and use the arrow keys, to read all methods.${cut()}`,
    draw: width => lines.length ? lineChart({width, lines, xText: "tasks learnt", yText: "accuracy, %", label: `${chosen}, ${lines.length} methods`,
      unit: " %", yFormat: value => value.toFixed(value % 1 ? 1 : 0), y: values => fitting(values, 100 * DATA.range[0], 100 * DATA.range[1])}) : h("p", {class: "soft"}, "Nothing to draw for this choice."),
    table: () => linesTable(lines, "after task")}), ...withinTasks(), forgettingCard()];
}

/** Accuracy of every task at steps within the tasks, for the groups that recorded it. */
function withinTasks() {
  const groups = drawn(group => group.curves).slice(0, 8);
  if (!groups.length) return [];
  const task = Math.min(Number(state.task), groups[0].tasks) - 1;
  const lines = groups.map(group => {
    const values = unpack(group.curves.values);
    return lineOf(group, group.curves.at.map((_, at) => ({x: at + 1, y: 100 * values[at * group.tasks + task]})));
  });
  return [card({id: "within-tasks", title: `While training: accuracy on task ${task + 1}`, text: "At the points within the tasks where it was measured, mean over seeds. The slider above chooses the task.",
    draw: width => lineChart({width, lines, xText: "measurement", yText: "accuracy, %", label: `accuracy on task ${task + 1} while training`, unit: " %",
      yFormat: value => value.toFixed(1), y: values => fitting(values, 100 * DATA.range[0], 100 * DATA.range[1])}), table: () => linesTable(lines, "point")})];
}

/** What a task has lost since it was learnt, per seed: its accuracy then minus the final one, in points. */
function lost(group, task) {
  const own = accuracies(group, task + 1, task), last = accuracies(group, group.tasks, task);
  return own.map((value, seed) => 100 * (value - last[seed]));
}

function forgettingCard() {
  const lines = drawn(group => group.tasks > 1 && group.done.length).map(group => lineOf(group, Array.from({length: group.tasks - 1}, (_, task) => {
    const values = lost(group, task), middle = mean(values), sd = spread(values);
    return {x: task + 1, y: middle, sd, low: middle - sd, high: middle + sd};
  })));
  if (!lines.length) return null;
  return card({id: "forgetting-per-task", title: "Forgetting per task", text: "Points of accuracy that each task has lost between its own end and the end of the stream; below 0 it has gained.",
    draw: width => lineChart({width, height: 260, lines, xText: "task", yText: "points lost", label: "points of accuracy lost by each task", yFormat: value => value.toFixed(value % 1 ? 1 : 0),
      y: values => fitting([...values, 0], -200, 200), limit: 0, limitText: ""}), table: () => linesTable(lines, "task")});
}

// ---- matrices ---------------------------------------------------------------------------------------------------

const mix = (from, to, share) => from.map((value, at) => Math.round(value + (to[at] - value) * share));
const luminance = colour => [0.2126, 0.7152, 0.0722].reduce((sum, weight, at) => {
  const part = colour[at] / 255;
  return sum + weight * (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
}, 0);

/** Black or white, whichever is easier to read on a colour. */
const inkOn = colour => luminance(colour) > 0.179 ? "#000" : "#fff";

function heatColour(share) {
  const value = Math.min(1, Math.max(0, share));
  return isDark() ? mix([27, 36, 48], [120, 190, 250], value) : mix([240, 245, 250], [8, 72, 140], value);
}

function differenceColour(share) {
  const value = Math.min(1, Math.abs(share)), middle = isDark() ? [34, 40, 49] : [250, 249, 247];
  return mix(middle, share > 0 ? (isDark() ? [255, 160, 80] : [200, 80, 0]) : (isDark() ? [90, 170, 240] : [0, 90, 160]), value);
}

/** A matrix of accuracies or of differences; the task just learnt is framed. */
function heat(rows, width, colour, text, words, widest = 58) {
  const tasks = rows[0].length, left = 34, cell = Math.min(widest, (width - left - 2) / tasks), tall = Math.min(30, Math.max(12, cell * 0.72)), top = 18;
  const svg = s("svg", {viewBox: `0 0 ${left + cell * tasks + 2} ${top + tall * rows.length + 2}`, width: left + cell * tasks + 2, height: top + tall * rows.length + 2, role: "img", "aria-label": words});
  const small = cell < 24;
  for (let task = 0; task < tasks; task++) if (!small || task % 2 === 0) svg.append(s("text", {class: "heat-name", x: left + cell * (task + 0.5), y: 12, "text-anchor": "middle"}, String(task + 1)));
  rows.forEach((row, after) => {
    if (!small || after % 2 === 0) svg.append(s("text", {class: "heat-name", x: left - 6, y: top + tall * (after + 0.5) + 4, "text-anchor": "end"}, after ? String(after) : "start"));
    row.forEach((value, task) => {
      const paint = colour(value), x = left + cell * task, y = top + tall * after;
      const box = s("g", {}, s("title", {}, `after ${after || "no"} task${after === 1 ? "" : "s"}, on task ${task + 1}: ${text(value, 2)}`),
        s("rect", {x: x + 0.5, y: y + 0.5, width: cell - 1, height: tall - 1, rx: 2, fill: Number.isFinite(value) ? `rgb(${paint})` : "none", class: task >= after ? "later" : ""}));
      if (cell >= 19) box.append(s("text", {class: "heat-value", x: x + cell / 2, y: y + tall / 2 + 3.6, "text-anchor": "middle", fill: inkOn(paint)}, text(value, cell > 34 ? 1 : 0)));
      svg.append(box);
    });
    if (after) svg.append(s("rect", {class: "own", x: left + cell * (after - 1) + 0.5, y: top + tall * after + 0.5, width: cell - 1, height: tall - 1, rx: 2}));
  });
  return svg;
}

const matrixTable = rows => ({heads: ["after task", ...rows[0].map((_, task) => `task ${task + 1}`)], rows: rows.map((row, after) => [after ? String(after) : "start", ...row.map(value => Number.isFinite(value) ? value : "")])});

function smallMatrix(group) {
  return card({id: `matrix-${group.index}`, title: group.label, wide: false, draw: width => {
    const rows = matrix(group), bars = group.tasks > 1 ? lossBars(group, width) : "";
    return h("div", {"data-m": group.m}, heat(rows, width, heatColour, (value, digits) => percent(value, digits ? 1 : 0), `accuracy matrix of ${group.label}`), bars);
  }, table: () => matrixTable(matrix(group))});
}

/** Points lost by each task since it was learnt, under its column. */
function lossBars(group, width) {
  const tasks = group.tasks, left = 34, cell = Math.min(58, (width - left - 2) / tasks), values = Array.from({length: tasks}, (_, task) => mean(lost(group, task)));
  const most = Math.max(10, ...values.map(Math.abs)), tall = 34;
  const svg = s("svg", {viewBox: `0 0 ${left + cell * tasks + 2} ${tall + 4}`, width: left + cell * tasks + 2, height: tall + 4, role: "img", "aria-label": `points lost per task: ${values.map(value => value.toFixed(1)).join(", ")}`});
  svg.append(s("text", {class: "heat-name", x: left - 6, y: 12, "text-anchor": "end"}, "lost"));
  values.forEach((value, task) => svg.append(s("g", {}, s("title", {}, `task ${task + 1}: ${value.toFixed(1)} points lost`),
    s("rect", {class: value > 0 ? "loss" : "gain", x: left + cell * task + 3, width: Math.max(1, cell - 6), y: 2, height: Math.max(1, tall * Math.abs(value) / most)}))));
  return svg;
}

/** The two groups whose difference is shown: those in the address, else the best of the OGD family and plain SGD. */
function pair() {
  const own = DATA.groups.filter(group => group.stream === streamIndex() && group.done.length);
  const aac = DATA.metrics.findIndex(metric => metric.name === "aac"), find = label => own.find(group => group.label === label);
  const best = [...own].sort((one, two) => two.cells[aac].mean - one.cells[aac].mean);
  const plain = own.find(group => group.method === "sgd");
  const a = find(state.a) ?? find("ogd+") ?? best.find(group => group !== plain) ?? best[0];
  return [a, find(state.b) ?? (plain !== a && plain) ?? best.find(group => group !== a)];
}

function drawMatrices() {
  const groups = sorted(visible().filter(group => group.done.length && group.tasks)), count = printing ? groups.length : Number(state.more || 0) ? 48 : 12, shown = groups.slice(0, count);
  const [a, b] = pair(), found = [];
  if (a && b && a !== b && a.tasks === b.tasks) found.push(differenceCard(a, b));
  const grid = h("div", {class: "grid"}, shown.map(smallMatrix));
  return [...found, grid, shown.length < groups.length ? h("p", {}, `${shown.length} of ${groups.length} matrices; search or chips choose others. `,
    count < 48 ? button("Show 48", () => change({more: "1"})) : "") : null];
}

function differenceCard(a, b) {
  const own = DATA.groups.filter(group => group.stream === streamIndex() && group.done.length);
  const choice = (name, now, text) => h("label", {class: "pick"}, text, h("select", {id: `difference-${name}`, onchange: event => { change({[name]: event.target.value}); byId(`difference-${name}`)?.focus(); }},
    own.slice(0, 300).map(group => h("option", {selected: group === now, value: group.label}, group.label))));
  const [one, two] = [matrix(a), matrix(b)], rows = one.map((row, after) => row.map((value, task) => value - two[after][task]));
  const most = Math.max(0.01, ...rows.flat().filter(Number.isFinite).map(Math.abs));
  const signed = (value, digits) => Number.isFinite(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(digits ? 1 : 0)}` : "–";
  const last = rows[rows.length - 1], kept = mean(last.slice(0, -1)), learnt = mean(rows.slice(1).map((row, at) => row[at]));
  const finding = `In the end ${a.label} has ${signed(kept, 1)} points on earlier tasks, and ${signed(learnt, 1)} on a task just learnt.`;
  return card({id: "difference", title: `Difference: ${a.label} minus ${b.label}`, text: `${finding} Orange: ${a.label} is ahead; blue: ${b.label}. Below the frames is memory, on them learning.`,
    controls: h("div", {class: "controls"}, choice("a", a, "show "), choice("b", b, "minus ")),
    draw: width => heat(rows, Math.min(width, 860), value => differenceColour(value / most), signed, `accuracy of ${a.label} minus ${b.label}, in points`, 92), table: () => matrixTable(rows)});
}

// ---- cost -------------------------------------------------------------------------------------------------------

function costPoints() {
  const at = name => DATA.metrics.findIndex(metric => metric.name === name), [aac, x] = [at("aac"), at(state.cost)];
  const groups = visible().filter(group => group.done.length && Number.isFinite(group.cells[x]?.mean) && Number.isFinite(group.cells[aac].mean));
  const found = groups.map(group => ({group, x: group.cells[x].mean, y: 100 * group.cells[aac].mean, sd: 100 * group.cells[aac].spread}));
  const plain = groups.find(group => group.method === "sgd");
  for (const group of groups) {
    if (!group.dense) continue;
    const price = state.cost === "memory" ? group.dense.bytes : plain ? plain.cells[x].mean * group.dense.work : NaN;
    if (Number.isFinite(price)) found.push({group, x: price, y: 100 * group.cells[aac].mean, sd: NaN, ghost: true});
  }
  return found;
}

/** The points that no other beats in both price and accuracy, from the cheapest to the dearest. */
function pareto(items) {
  const found = [];
  for (const item of [...items].filter(item => !item.ghost).sort((a, b) => a.x - b.x || b.y - a.y))
    if (!found.length || item.y > found[found.length - 1].y) found.push(item);
  return found;
}

function drawCost() {
  const items = costPoints(), memory = state.cost === "memory", format = value => memory ? sizeText(value) : timeText(value);
  if (!items.length) return [h("p", {class: "soft"}, "No finished run to show.")];
  const pick = (name, text) => h("label", {class: "pick"}, h("input", {type: "radio", name: "cost", checked: state.cost === name, onchange: () => change({cost: name})}), text);
  const ghost = items.some(item => item.ghost) ? memory ? " Hollow: dense OGD as published, which keeps an explicit gradient of all weights for every remembered output (counted)."
    : " Hollow: dense OGD as published, from its multiply-adds with the memory half full, 2 × tangents × weights a step beside 3 × batch × weights of a plain step (counted, not measured)." : "";
  return [card({id: "cost-accuracy", title: `Accuracy against ${memory ? "memory" : "time"}`, text: `Up and to the left is better; the line joins the methods that no other beats in both.${ghost}`,
    controls: h("div", {class: "controls", role: "group", "aria-label": "price"}, pick("seconds", "time of a run"), pick("memory", "memory of the method")),
    draw: width => costChart(width, items, format), table: () => ({heads: ["method", "accuracy, %", "spread", memory ? "bytes" : "seconds", "kind"],
      rows: items.map(item => [item.group.label, item.y, Number.isFinite(item.sd) ? item.sd : "", item.x, item.ghost ? "dense OGD as published, counted" : "measured"])})})];
}

function costChart(width, items, format) {
  const positive = items.filter(item => item.x > 0).map(item => item.x), none = items.some(item => !(item.x > 0));
  const low = Math.min(...positive, 1e300), high = Math.max(...positive, 1e-300), least = positive.length ? low / (none ? 12 : 1.5) : 0.1, most = positive.length ? high * 1.6 : 1;
  const ys = items.flatMap(item => [item.y, item.y - (item.sd || 0), item.y + (item.sd || 0)]);
  const {svg, across, up, box} = frame({width, height: 360, x: [least, most, true], y: fitting(ys, 100 * DATA.range[0], 100 * DATA.range[1]), xText: state.cost === "memory" ? "memory (log)" : "time of a run (log)",
    yText: "average accuracy, %", label: `accuracy against ${state.cost} of ${items.length} methods`, xFormat: format, yFormat: value => String(Number(value.toPrecision(4)))});
  const place = item => [item.x > 0 ? across(item.x) : box.left + 8, up(item.y)];
  if (none) svg.append(s("text", {class: "limit-text", x: box.left + 4, y: box.bottom - 6}, "none"));
  const front = pareto(items);
  if (front.length > 1) svg.append(s("path", {class: "pareto", d: path(front.flatMap((item, at) => at ? [[place(item)[0], place(front[at - 1])[1]], place(item)] : [place(item)]))}));
  points(svg, items.map(item => ({x: place(item)[0], y: place(item)[1], m: item.group.m, colour: item.group.colour, marker: item.group.marker, ghost: item.ghost,
    text: item.ghost ? `${item.group.label}, dense as published` : item.group.label, title: `${item.group.label}${item.ghost ? ", dense as published" : ""}: ${item.y.toFixed(1)} %, ${format(item.x)}`,
    bar: Number.isFinite(item.sd) ? [up(item.y - item.sd), up(item.y + item.sd)] : null})), box);
  return svg;
}
