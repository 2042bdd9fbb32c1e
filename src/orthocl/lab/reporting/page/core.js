// Data, state and the small tools that all parts of the page use. The files of this folder form one script.

let DATA = JSON.parse(document.getElementById("data").textContent);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const VALUE_OF = Object.fromEntries([...LETTERS].map((letter, value) => [letter, value]));

/** Numbers that `pack` of page_data.py wrote, three characters each. */
function unpack(text) {
  const [low, high] = DATA.range,
    found = [];
  for (let at = 0; at < text.length; at += 3) {
    const level = (VALUE_OF[text[at]] << 12) | (VALUE_OF[text[at + 1]] << 6) | VALUE_OF[text[at + 2]];
    found.push(text[at] === " " ? NaN : low + ((high - low) * level) / 262143);
  }
  return found;
}

const mean = values => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN);

/** Sample standard deviation (n - 1); NaN with fewer than two values. */
function spread(values) {
  if (values.length < 2) return NaN;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

/** Everything that is derived from the embedded data; called again when a live page gets new data. */
function prepare() {
  const methods = [...new Set(DATA.groups.map(group => group.family))];
  DATA.methods = methods;
  DATA.groups.forEach((group, index) => {
    group.index = index;
    group.m = methods.indexOf(group.family);
    group.done = group.runs.filter(run => run.after !== "");
    group.cells = DATA.metrics.map((_, at) => {
      const values = group.done.map(run => run.values[at]).filter(value => value !== null);
      return {values, mean: mean(values), spread: spread(values)};
    });
    group.all = {...DATA.common, ...group.settings};
    group.alike = DATA.groups
      .slice(0, index)
      .filter(g => g.stream === group.stream && g.colour === group.colour).length;
  });
}

/** Accuracy on task `task` (from 0) after `after` tasks, for every seed; before it was learnt, the mean over seeds. */
function accuracies(group, after, task) {
  unfold(group);
  return task < after
    ? group.after.map(values => values[(after * (after - 1)) / 2 + task])
    : [group.before2[after][task]];
}

function unfold(group) {
  if (group.after) return;
  group.after = group.done.map(run => unpack(run.after));
  const flat = unpack(group.before || "");
  group.before2 = [];
  for (let after = 0, at = 0; after <= group.tasks; after++) {
    const row = new Array(group.tasks).fill(NaN);
    for (let task = after; task < group.tasks; task++) row[task] = flat[at++];
    group.before2.push(row);
  }
}

/** The mean accuracy matrix: row 0 before training, then one row per task. */
function matrix(group) {
  return (group.matrix ??= Array.from({length: group.tasks + 1}, (_, after) =>
    Array.from({length: group.tasks}, (_, task) => mean(accuracies(group, after, task))),
  ));
}

// ---- numbers for people -----------------------------------------------------------------------------------------

const percent = (value, digits = 1) => (Number.isFinite(value) ? (100 * value).toFixed(digits) : "–");

function sizeText(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(bytes) < 999.5) return `${Number(bytes.toPrecision(3))} ${unit}`;
    bytes /= 1000;
  }
  return `${Number(bytes.toPrecision(3))} TB`;
}

function timeText(seconds) {
  if (seconds > 0 && seconds < 0.05) return "< 0.1 s";
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds),
    minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A few digits of any number. */
function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5))
    return String(Number(value.toPrecision(2)).toExponential()).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

function valueText(value, unit, digits = 1) {
  if (value === null || !Number.isFinite(value)) return "–";
  return unit === "percent"
    ? percent(value, digits)
    : unit === "seconds"
      ? timeText(value)
      : unit === "memory" || unit === "bytes"
        ? sizeText(value)
        : short(value);
}

const settingText = value =>
  value === null || value === undefined
    ? "default"
    : Array.isArray(value)
      ? value.map(settingText).join("x")
      : String(value);

// ---- elements ---------------------------------------------------------------------------------------------------

/** An HTML element; texts are always texts, never markup. */
function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

const byId = id => document.getElementById(id);
const swatch = group => h("span", {class: "swatch", style: `--c:${group.colour}`, "aria-hidden": "true"});

// ---- state, kept in the address ---------------------------------------------------------------------------------

const INITIAL = {
  stream: "",
  hide: "",
  q: "",
  sort: "",
  columns: "",
  curve: "sofar",
  task: "1",
  seeds: "",
  a: "",
  b: "",
  cost: "seconds",
  pick: "",
  more: "",
};
let state = {...INITIAL};

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state = {...INITIAL};
  for (const name of Object.keys(INITIAL)) if (given.has(name)) state[name] = given.get(name);
  return given.get("at");
}

function address(at = "") {
  const kept = Object.entries(state).filter(([name, value]) => value !== INITIAL[name]);
  return "#" + new URLSearchParams(at ? [...kept, ["at", at]] : kept).toString();
}

/** Change the state, put it into the address and draw what depends on it. */
function change(values) {
  Object.assign(state, values);
  history.replaceState(null, "", address());
  draw();
}

const streamIndex = () =>
  Math.max(
    0,
    DATA.streams.findIndex(stream => stream.name === state.stream),
  );
const hidden = () => new Set(state.hide.split("\n").filter(Boolean));

/** What is shown of the chosen stream: without the many settings of a method beside it, until they are asked for. */
const visible = () => (state.more || state.q ? matching() : collapsed(matching()));

const MANY_SETTINGS = 4;

/** Of a method that also stands there by its name alone, many settings become the best of them, which says so. */
function collapsed(groups) {
  const settings = new Map();
  for (const group of groups)
    if (!group.settled) settings.set(group.family, [...(settings.get(group.family) ?? []), group]);
  const many = family =>
    (settings.get(family)?.length ?? 0) >= MANY_SETTINGS && groups.some(one => one.settled && one.family === family);
  return groups.flatMap(group => {
    if (group.settled || !many(group.family)) return [group];
    const all = settings.get(group.family);
    return bestOf(all) === group
      ? [Object.create(group, {label: {value: `${group.family}, best of ${all.length} settings`}, of: {value: all}})]
      : [];
  });
}

/** The highest average accuracy. */
function bestOf(groups, at = DATA.metrics.findIndex(metric => metric.name === "aac")) {
  const sign = DATA.metrics[at].better === "lower" ? -1 : 1,
    key = group => (Number.isFinite(group.cells[at].mean) ? sign * group.cells[at].mean : -Infinity);
  return groups.reduce((best, group) => (key(group) > key(best) ? group : best));
}

/** The groups of the chosen stream that neither a chip nor the search hides. */
function matching() {
  const off = hidden(),
    words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  return DATA.groups.filter(
    group =>
      group.stream === streamIndex() &&
      !off.has(group.family) &&
      words.every(word => searchable(group).includes(word)),
  );
}

function searchable(group) {
  return (group.text ??= [
    group.label,
    ...Object.entries(group.settings).map(([k, v]) => `${k}=${settingText(v)}`),
    ...group.runs.map(run => run.id),
  ]
    .join(" ")
    .toLowerCase());
}

/** The settings in which the groups of a stream differ. */
function differing(groups) {
  const names = [...new Set(groups.flatMap(group => Object.keys(group.settings)))];
  return names.filter(name => new Set(groups.map(group => JSON.stringify(group.settings[name]))).size > 1);
}

// ---- theme ------------------------------------------------------------------------------------------------------

let printing = false;

function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// ---- copying and downloading ------------------------------------------------------------------------------------

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // pages from disk may not use the clipboard's interface
    const area = h("textarea", {style: "position:fixed;opacity:0"});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => {
    button.textContent = before;
  }, 1200);
}

function download(name, content, type) {
  const link = h("a", {download: name, href: URL.createObjectURL(new Blob([content], {type}))});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Tell a screen reader. */
function say(text) {
  byId("said").textContent = text;
}

const button = (text, action, more = {}) => h("button", {type: "button", onclick: action, ...more}, text);

// ---- tables as text ---------------------------------------------------------------------------------------------

const oneLine = text =>
  String(text)
    .replace(/[\n\r\t]/g, " ")
    .replace(/[\p{Cc}\p{Cf}\p{Cs}]/gu, "\ufffd");

function markdownText(text) {
  return oneLine(text)
    .replace(/([\\`*|[\]~])/g, "\\$1")
    .replace(/</g, "&lt;")
    .replace(/(?<![\p{L}\p{N}_])_|_(?![\p{L}\p{N}_])/gu, "\\_");
}

const LATEX = {
  "\\": "\\textbackslash{}",
  "~": "\\textasciitilde{}",
  "^": "\\textasciicircum{}",
  "±": "$\\pm$",
  "–": "--",
};
const latexText = text => oneLine(text).replace(/[\\~^±–&%$#_{}]/g, letter => LATEX[letter] ?? "\\" + letter);

function csvText(text) {
  const plain = typeof text === "number" ? String(text) : oneLine(text);
  const safe = typeof text !== "number" && /^\s*[=+\-@|%]/.test(plain) ? "'" + plain : plain;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const toCsv = (heads, rows) => [heads, ...rows].map(row => row.map(csvText).join(",")).join("\n") + "\n";
const toMarkdown = (heads, rows) =>
  [heads, heads.map(() => "---"), ...rows]
    .map((row, at) => "| " + row.map(cell => (at === 1 ? cell : markdownCell(cell))).join(" | ") + " |")
    .join("\n") + "\n";
const markdownCell = cell =>
  cell?.strong ? `**${markdownText(cell.strong)}**` : cell?.tie ? `${markdownText(cell.tie)} †` : markdownText(cell);
const latexCell = cell =>
  cell?.strong
    ? `\\textbf{${latexText(cell.strong)}}`
    : cell?.tie
      ? `${latexText(cell.tie)}$^\\dagger$`
      : latexText(cell);
const marked = (text, mark) => (mark === "b" ? {strong: text} : mark === "t" ? {tie: text} : text);

function toLatex(heads, rows) {
  const line = cells => cells.map(latexCell).join(" & ") + " \\\\";
  return (
    [
      `\\begin{tabular}{l${"r".repeat(Math.max(0, heads.length - 1))}}`,
      "\\toprule",
      line(heads),
      "\\midrule",
      ...rows.map(line),
      "\\bottomrule",
      "\\end{tabular}",
    ].join("\n") + "\n"
  );
}
