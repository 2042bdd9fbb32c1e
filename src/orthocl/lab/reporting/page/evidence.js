// What stands behind the numbers: monitors of the methods, theory beside practice, certificates.

const verdictOf = (words, value) =>
  words.limit === undefined ? "" : value > words.limit === (words.above === "bad") ? "bad" : "good";

/** One chart per monitor that some visible method reported, with its limit and what it means. */
function drawMonitors() {
  const groups = drawn(group => group.monitors?.length);
  const named = Object.keys(DATA.monitors),
    all = new Set(groups.flatMap(group => group.monitors.flatMap(row => Object.keys(row))));
  const names = [...named.filter(name => all.has(name)), ...[...all].filter(name => !named.includes(name)).sort()];
  if (!names.length) return [h("p", {class: "soft"}, "The visible methods reported nothing about themselves.")];
  return [
    h(
      "div",
      {class: "grid wide"},
      names.map(name =>
        monitorCard(
          name,
          groups.filter(group => group.monitors.some(row => name in row)),
        ),
      ),
    ),
  ];
}

function monitorCard(name, groups) {
  const words = DATA.monitors[name] ?? {
    title: name.replaceAll("_", " "),
    meaning: "Reported by the method after each task.",
  };
  const lines = groups.map(group => {
    const first = group.tasks - group.monitors.length;
    return lineOf(
      group,
      group.monitors.map((row, at) => ({x: first + at + 1, y: row[name] ?? NaN})),
    );
  });
  const ends = lines
    .map(line => ({line, value: line.points.findLast(point => Number.isFinite(point.y))?.y}))
    .filter(one => one.value !== undefined);
  const bad = ends.filter(one => verdictOf(words, one.value) === "bad"),
    format = value => valueText(value, words.unit);
  const verdict =
    words.limit === undefined
      ? ""
      : bad.length
        ? `${bad
            .map(one => `${one.line.text} (${format(one.value)})`)
            .slice(0, 5)
            .join(", ")}: ${words.bad}`
        : words.good;
  const range = values => {
    const used = words.limit === undefined ? values : [...values, words.limit];
    const own = values.filter(value => value > 0);
    if (words.log || (words.zero && Math.max(...own) > 60 * Math.min(...own))) {
      const positive = used.filter(value => value > 0);
      return positive.length ? [Math.min(...positive) / 2, Math.max(...positive) * 2, true] : [0.5, 2, true];
    }
    return fitting(words.zero ? [...used, 0, words.top ?? 0] : used, words.zero ? 0 : -Infinity, Infinity);
  };
  return card({
    id: `monitor-${name}`,
    title: words.title,
    text: words.meaning,
    wide: false,
    controls: verdict
      ? h(
          "p",
          {class: `verdict ${bad.length ? "bad" : "good"}`},
          h("b", {}, bad.length ? "Worth a look. " : "All well. "),
          verdict,
        )
      : null,
    draw: width =>
      lineChart({
        width,
        height: 230,
        lines,
        xText: "task",
        yText: words.unit ?? "",
        label: words.title,
        yFormat: format,
        y: range,
        limit: words.limit,
        limitText: words.limit_text,
      }),
    table: () => linesTable(lines, "after task", Math.min(...lines.map(line => line.points[0].x))),
  });
}

// ---- theory -----------------------------------------------------------------------------------------------------

function ranks(values) {
  const order = values.map((value, at) => [value, at]).sort((a, b) => a[0] - b[0]),
    found = [];
  for (let at = 0; at < order.length;) {
    let end = at;
    while (end + 1 < order.length && order[end + 1][0] === order[at][0]) end++;
    for (let one = at; one <= end; one++) found[order[one][1]] = (at + end) / 2;
    at = end + 1;
  }
  return found;
}

/** Spearman's rank correlation. */
function rankCorrelation(xs, ys) {
  const [a, b] = [ranks(xs), ranks(ys)],
    [ma, mb] = [mean(a), mean(b)];
  const part = (u, v, mu, mv) => u.reduce((sum, value, at) => sum + (value - mu) * (v[at] - mv), 0);
  return part(a, b, ma, mb) / Math.sqrt(part(a, a, ma, ma) * part(b, b, mb, mb));
}

function drawTheory() {
  const found = [],
    groups = drawn(group => group.forecasts?.length);
  if (groups.length)
    found.push(
      forecastCard(
        groups,
        2,
        3,
        "change",
        "Forecast against what happened",
        "mean squared change of the outputs on earlier tasks",
        true,
      ),
      forecastCard(
        groups,
        4,
        5,
        "drop",
        "Forecast loss of accuracy",
        "points of accuracy that earlier tasks lose",
        false,
      ),
    );
  for (const row of DATA.theory.filter(row => row.stream === DATA.streams[streamIndex()].name))
    found.push(...theoryCards(row));
  if (!found.length)
    return [
      h(
        "p",
        {class: "soft"},
        "No forecasts or closed forms stand beside these runs. `orthocl run --forecast` writes forecasts, each before its task is learnt.",
      ),
    ];
  return [h("div", {class: "grid wide"}, found.filter(Boolean))];
}

/** Forecasts, made before each task, against what was measured after it; the diagonal is a perfect forecast. */
function forecastCard(groups, x, y, id, title, what, log) {
  const unit = log ? 1 : 100,
    items = groups.flatMap(group =>
      group.forecasts
        .filter(row => row[x] !== null && row[y] !== null && (!log || (row[x] > 0 && row[y] > 0)))
        .map(row => ({group, task: row[0], earlier: row[1], x: unit * row[x], y: unit * row[y]})),
    );
  if (items.length < 2) return null;
  const told = groups
    .map(group => {
      const own = items.filter(item => item.group === group);
      return own.length > 4
        ? `${group.label} ${rankCorrelation(
            own.map(item => item.x),
            own.map(item => item.y),
          )
            .toFixed(2)
            .replace("-0.00", "0.00")}`
        : "";
    })
    .filter(Boolean);
  const values = items.flatMap(item => [item.x, item.y]),
    range = log ? [Math.min(...values) / 1.3, Math.max(...values) * 1.3, true] : fitting(values, -200, 200);
  return card({
    id: `forecast-${id}`,
    title,
    wide: false,
    text: `Each point is a pair of tasks: ${what}, forecast before the later one was learnt. On the line the forecast was right. Rank correlation: ${told.slice(0, 12).join(", ") || "too few points"}.`,
    draw: width => {
      const {svg, across, up, box} = frame({
        width,
        height: 300,
        x: range,
        y: range,
        xText: "forecast",
        yText: "measured",
        label: `${title}: ${items.length} pairs of tasks`,
      });
      svg.append(s("line", {class: "pareto", x1: box.left, y1: box.bottom, x2: box.right, y2: box.top}));
      points(
        svg,
        items
          .slice(0, 1500)
          .map(item => ({
            x: across(item.x),
            y: up(item.y),
            m: item.group.m,
            colour: item.group.colour,
            marker: item.group.marker,
            text: "",
            size: 0.8,
            title: `${item.group.label}: task ${item.task}'s effect on task ${item.earlier}: forecast ${short(item.x)}, measured ${short(item.y)}`,
          })),
        box,
      );
      return svg;
    },
    table: () => ({
      heads: ["method", "task", "earlier task", "forecast", "measured"],
      rows: items.map(item => [item.group.label, String(item.task), String(item.earlier), item.x, item.y]),
    }),
  });
}

/** Closed forms of a stream: lists of numbers per rule, one per task. */
function theoryCards(row) {
  const words = {
    dissimilarity: [
      "Dissimilarity of each task to those before",
      "S of the paper: how much a task must undo. Similar tasks have similar values.",
    ],
    complexity: ["Complexity of each task", "The term that the bound of a task grows with."],
    forgetting: [
      "Forgetting in closed form",
      "What infinitely wide networks would lose; 0 for OGD on what it remembers.",
    ],
    bounds: ["Bounds of the error", "Below 1 a bound says something."],
  };
  const colours = {sgd: "#7a7a7a", ogd: "#E69F00", "ogd+": "#D55E00"};
  return Object.entries(words)
    .filter(([name]) => row[name] && typeof row[name] === "object")
    .map(([name, [title, text]]) => {
      const lines = Object.entries(row[name])
        .filter(([, values]) => Array.isArray(values) && values.every(value => typeof value === "number"))
        .map(([rule, values], at) => ({
          text: rule,
          m: DATA.methods.indexOf(rule),
          colour: colours[rule] ?? "#0072B2",
          marker: "osD^"[at % 4],
          dash: 0,
          points: values.map((y, task) => ({x: task + 1, y})),
        }));
      if (!lines.length || !lines.some(line => line.points.length)) return null;
      const limit = name === "bounds" ? {limit: 1, limitText: "says nothing above"} : {};
      return card({
        id: `theory-${name}`,
        title,
        wide: false,
        text: `${text} ${row.kernel ? `Kernel: ${row.kernel}.` : ""}`,
        draw: width =>
          lineChart({
            width,
            height: 250,
            lines,
            xText: "task",
            yText: "",
            label: title,
            yFormat: short,
            y: values => fitting([...values, 0], -Infinity, Infinity),
            ...limit,
          }),
        table: () => linesTable(lines, "task"),
      });
    });
}

// ---- certificates -----------------------------------------------------------------------------------------------

function drawCertificates() {
  const found = DATA.certificates.filter(
    one => one.stream === DATA.streams[streamIndex()].name && !hidden().has(one.label.split(" ")[0]),
  );
  byId("certificates").hidden = !DATA.certificates.length;
  document.querySelector('nav [data-section="certificates"]').hidden = !DATA.certificates.length;
  return [
    h("div", {class: "grid wide"}, found.slice(0, 60).map(certificateCard)),
    found.length ? null : h("p", {class: "soft"}, "No certificate on this stream."),
  ];
}

/** A certificate, whatever it holds: its sentence first, then what else it says. */
function certificateCard({label, seed, run, certificate}) {
  const lead = ["sentence", "statement", "summary", "text", "claim"]
    .map(name => certificate[name])
    .find(value => typeof value === "string");
  const rest = Object.entries(certificate).filter(([, value]) => value !== lead);
  return h(
    "article",
    {class: "card certificate"},
    h("h3", {}, `${label}, seed ${seed}`),
    lead ? h("p", {class: "lead"}, lead) : null,
    pairsTable(rest),
    h("p", {class: "soft"}, "run ", h("code", {}, run)),
    h(
      "div",
      {class: "tools"},
      button(
        "JSON",
        () => download(`certificate-${run}.json`, JSON.stringify(certificate, null, 1), "application/json"),
        {"aria-label": `certificate of ${label}, seed ${seed}: download JSON`},
      ),
    ),
  );
}

function pairsTable(entries) {
  return h(
    "table",
    {class: "small pairs"},
    h(
      "tbody",
      {},
      entries
        .slice(0, 40)
        .map(([name, value]) =>
          h("tr", {}, h("th", {scope: "row"}, name.replaceAll("_", " ")), h("td", {}, anyValue(value))),
        ),
    ),
  );
}

function anyValue(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return short(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "object") return String(value);
  if (!Array.isArray(value)) return pairsTable(Object.entries(value));
  const plain = value.every(one => typeof one !== "object" || one === null);
  return plain ? value.map(anyValue).join(", ") || "none" : objectsTable(value);
}

/** Objects as rows, with a column for each of their entries; what is nested gets a column of its own. */
function objectsTable(list) {
  const flat = (one, prefix = "") =>
    Object.entries(one ?? {}).flatMap(([name, value]) =>
      value && typeof value === "object" && !Array.isArray(value)
        ? flat(value, `${prefix}${name} `)
        : [[prefix + name, value]],
    );
  const rows = list.slice(0, 30).map(one => Object.fromEntries(flat(one)));
  const names = [...new Set(rows.flatMap(row => Object.keys(row)))].slice(0, 16);
  return h(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": "entries"},
    h(
      "table",
      {class: "small"},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map(name => h("th", {scope: "col"}, name.replaceAll("_", " "))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(row =>
          h(
            "tr",
            {},
            names.map(name => h("td", {}, anyValue(row[name] ?? null))),
          ),
        ),
      ),
    ),
  );
}
