// The results: a table that sorts, with the spread of each cell, ties by test, and copies of what is shown.

const FIRST_ROWS = 60;

function metricColumns() {
  const chosen = state.columns ? state.columns.split(",") : null;
  return DATA.metrics
    .map((metric, at) => ({...metric, at}))
    .filter(metric => (chosen ? chosen.includes(metric.name) : metric.shown));
}

/** The visible groups in the chosen order: that of the page, or by a column. */
function sorted(groups) {
  if (!state.sort) return groups;
  const [name, direction] = state.sort.split(":"),
    sign = direction === "up" ? 1 : -1;
  const at = DATA.metrics.findIndex(metric => metric.name === name);
  const key =
    name === "method"
      ? group => group.label
      : name === "seeds"
        ? group => group.done.length
        : group => group.cells[at]?.mean;
  return [...groups].sort((one, two) => {
    const [a, b] = [key(one), key(two)];
    if (typeof a === "string") return sign * a.localeCompare(b, "en", {numeric: true});
    if (!Number.isFinite(a) || !Number.isFinite(b)) return Number.isFinite(b) - Number.isFinite(a);
    return sign * (a - b);
  });
}

function sortBy(name, better) {
  const first = better === "lower" || name === "method" ? "up" : "down",
    other = first === "up" ? "down" : "up";
  const [now, direction] = state.sort.split(":");
  change({sort: now !== name ? `${name}:${first}` : direction === first ? `${name}:${other}` : ""});
  document.querySelector(`#results [data-sort="${CSS.escape(name)}"]`)?.focus();
}

function head(name, text, better, more = {}) {
  const [now, direction] = state.sort.split(":");
  const sort = now === name ? (direction === "up" ? "ascending" : "descending") : "none";
  return h(
    "th",
    {scope: "col", "aria-sort": sort, ...more},
    h(
      "button",
      {type: "button", class: "sort", "data-sort": name, onclick: () => sortBy(name, better)},
      text,
      h("span", {"aria-hidden": "true"}, {none: " ", ascending: " ▲", descending: " ▼"}[sort]),
    ),
  );
}

/** Seeds as dots and the mean ± spread as a bar, on the scale of the whole column. */
function strip(cell, low, high, group) {
  const wide = 84,
    place = value => (high > low ? 4 + ((wide - 8) * (value - low)) / (high - low) : wide / 2);
  const svg = s("svg", {
    class: "strip",
    viewBox: `0 0 ${wide} 10`,
    width: wide,
    height: 10,
    "aria-hidden": "true",
    style: `--c:${group.colour}`,
  });
  svg.append(s("line", {class: "base", x1: 0, x2: wide, y1: 5, y2: 5}));
  if (Number.isFinite(cell.spread))
    svg.append(
      s("line", {
        class: "bar",
        x1: Math.max(0, place(cell.mean - cell.spread)),
        x2: Math.min(wide, place(cell.mean + cell.spread)),
        y1: 5,
        y2: 5,
      }),
    );
  for (const value of cell.values.slice(0, 12))
    svg.append(s("circle", {class: "dot", cx: place(value), cy: 5, r: 2}));
  svg.append(s("line", {class: "mid", x1: place(cell.mean), x2: place(cell.mean), y1: 1, y2: 9}));
  return svg;
}

const cellText = (cell, metric, digits = 1) =>
  !Number.isFinite(cell.mean)
    ? "–"
    : valueText(cell.mean, metric.unit, digits) +
      (metric.unit === "percent" && Number.isFinite(cell.spread) ? ` ± ${percent(cell.spread, digits)}` : "");

function resultCell(group, metric, ranges) {
  const cell = group.cells[metric.at],
    mark = group.marks[metric.at];
  const words = {b: "best of the stream", t: "a paired test cannot tell it from the best"}[mark];
  return h(
    "td",
    {
      class: mark ? (mark === "b" ? "best" : "tie") : "",
      title: group.done
        .map((run, at) => `seed ${run.seed}: ${valueText(cell.values[at], metric.unit, 2)}`)
        .join("\n"),
    },
    h(
      "span",
      {class: "value"},
      cellText(cell, metric),
      words ? h("span", {class: "hide"}, ` (${words})`) : "",
      mark === "t" ? h("span", {"aria-hidden": "true", class: "sign"}, "≈") : "",
    ),
    metric.unit === "percent" && cell.values.length ? strip(cell, ...ranges[metric.at], group) : null,
  );
}

function resultRow(group, columns, names, ranges) {
  const about = [
    group.warning ? h("span", {class: "badge", title: group.warning}, group.warning.split(":")[0]) : null,
  ];
  return h(
    "tr",
    {"data-m": group.m},
    h("th", {scope: "row", title: group.of ? settingsOf(group) : null}, swatch(group), group.label, about),
    names.map(name => h("td", {class: "setting"}, settingText(group.settings[name]))),
    h("td", {class: "seeds"}, group.note ? "–" : String(group.done.length)),
    group.note
      ? h("td", {colspan: columns.length, class: "soft note"}, `unsupported: ${group.note}`)
      : columns.map(metric => resultCell(group, metric, ranges)),
  );
}

/** The settings of the best of many, from the label that it has by itself. */
const settingsOf = group => Object.getPrototypeOf(group).label;

function drawResults() {
  const groups = sorted(visible()),
    columns = metricColumns();
  const names = differing(DATA.groups.filter(group => group.stream === streamIndex()))
    .filter(name => shownSetting(name, groups))
    .slice(0, 4);
  const ranges = DATA.metrics.map((_, at) => {
    const all = groups.flatMap(group => group.cells[at].values);
    return [Math.min(...all), Math.max(...all)];
  });
  const shown = printing || state.more ? groups : groups.slice(0, FIRST_ROWS);
  const table = h(
    "table",
    {class: "results"},
    h("caption", {class: "hide"}, `Results on ${DATA.streams[streamIndex()].name}`),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head("method", "method"),
        names.map(name =>
          h("th", {scope: "col"}, name.replace(/^(method\.settings|net\.settings|stream\.options)\./, "")),
        ),
        head("seeds", "seeds", "", {class: "seeds"}),
        columns.map(metric => head(metric.name, metric.title, metric.better, {title: metric.meaning})),
      ),
    ),
    h(
      "tbody",
      {},
      shown.map(group => resultRow(group, columns, names, ranges)),
    ),
  );
  byId("results-table").replaceChildren(table);
  for (const step of innerWidth > 860 ? ["tight", "wrapped"] : ["tight"])
    if (!printing && byId("results-table").scrollWidth > byId("results-table").clientWidth) table.classList.add(step);
  byId("results-more").replaceChildren(
    shown.length < matching().length ? button(`Show all ${matching().length} rows`, () => change({more: "1"})) : "",
  );
  byId("results-none").hidden = groups.length > 0;
  byId("columns").replaceChildren(
    ...DATA.metrics.map(metric =>
      h(
        "label",
        {},
        h("input", {
          type: "checkbox",
          checked: columns.some(one => one.name === metric.name),
          onchange: event => toggleColumn(metric.name, event.target.checked),
        }),
        ` ${metric.title}`,
      ),
    ),
  );
}

/** Settings that the labels of the rows do not say already. */
function shownSetting(name, groups) {
  if (name === "data" || name.endsWith("source") || name === "method.name") return false;
  const last = name.split(".").pop();
  const alike = new Map();
  for (const group of groups) alike.set(group.method, [...(alike.get(group.method) ?? []), group]);
  return (
    [...alike.values()].some(same => new Set(same.map(group => JSON.stringify(group.settings[name]))).size > 1) &&
    !groups.every(group => group.label.includes(`${last}=`) || group.settings[name] === undefined)
  );
}

function toggleColumn(name, on) {
  const chosen = new Set(metricColumns().map(metric => metric.name));
  if (on) chosen.add(name);
  else if (chosen.size > 1) chosen.delete(name);
  const all = DATA.metrics.map(metric => metric.name),
    usual = DATA.metrics.filter(metric => metric.shown).map(metric => metric.name).join(","),
    now = all.filter(one => chosen.has(one)).join(",");
  change({columns: now === usual ? "" : now});
}

/** What the table shows, as heads and rows; the best is bold, its ties have a dagger. */
function shownTable() {
  const columns = metricColumns();
  return {
    heads: ["method", "seeds", ...columns.map(metric => metric.title)],
    rows: sorted(visible()).map(group => [
      group.label,
      String(group.done.length),
      ...columns.map(metric => marked(cellText(group.cells[metric.at], metric, 2), group.marks[metric.at])),
    ]),
  };
}

/** Numbers at full precision: mean and spread of each metric, accuracies as shares of 1. */
function exactTable() {
  const columns = metricColumns(),
    number = value => (Number.isFinite(value) ? value : "");
  return {
    heads: ["stream", "method", "seeds", ...columns.flatMap(metric => [metric.name, `${metric.name} spread`])],
    rows: sorted(visible()).map(group => [
      DATA.streams[group.stream].name,
      group.label,
      group.done.map(run => run.seed).join(" "),
      ...columns.flatMap(metric => [number(group.cells[metric.at].mean), number(group.cells[metric.at].spread)]),
    ]),
  };
}

/** A row for each method, and one for the best of its settings where it has both; a cell for each stream. */
function paperRows(at) {
  const off = hidden(),
    families = [...new Set(DATA.groups.map(group => group.family))].filter(one => !off.has(one));
  const cell = (groups, several) => {
    if (!groups.length) return undefined;
    const group = groups.length > 1 ? bestOf(groups, at) : groups[0];
    return {group, of: several ? groups.length : 0, mark: several ? "" : group.marks[at]};
  };
  return families
    .flatMap(name => {
      const on = DATA.streams.map((_, stream) => DATA.groups.filter(one => one.family === name && one.stream === stream));
      const own = on.map(groups => groups.filter(one => one.settled)),
        rest = on.map(groups => groups.filter(one => !one.settled));
      const first = own.map((groups, stream) =>
        groups.length ? cell(groups, false) : cell(rest[stream], rest[stream].length > 1),
      );
      const second = rest.map((groups, stream) => (own[stream].length ? cell(groups, true) : undefined));
      return [
        [name, ...first],
        [`${name}, other settings`, ...second],
      ];
    })
    .filter(([, ...row]) => row.some(Boolean))
    .slice(0, 80);
}

const paperText = (one, at, metric, digits = 1) =>
  cellText(one.group.cells[at], metric, digits) + (one.of > 1 ? ` (best of ${one.of})` : "");

/** Methods against streams, as papers print it, for the metric by which the results are sorted. */
function drawPaperTable() {
  const place = byId("paper-table");
  if (DATA.streams.length < 2) {
    byId("paper").hidden = true;
    return;
  }
  const name = state.sort.split(":")[0],
    at = Math.max(
      0,
      DATA.metrics.findIndex(metric => metric.name === name),
    ),
    metric = DATA.metrics[at];
  const cells = paperRows(at);
  byId("paper-title").textContent = `${metric.title}: methods × streams`;
  place.replaceChildren(
    h(
      "table",
      {class: "results"},
      h("caption", {class: "hide"}, `${metric.title} of all methods on all streams`),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {scope: "col"}, "method"),
          DATA.streams.map(stream => h("th", {scope: "col"}, stream.name)),
        ),
      ),
      h(
        "tbody",
        {},
        cells.map(([label, ...row]) =>
          h(
            "tr",
            {"data-m": row.find(Boolean).group.m},
            h("th", {scope: "row"}, swatch(row.find(Boolean).group), label),
            row.map(one =>
              h(
                "td",
                {class: one?.mark ? (one.mark === "b" ? "best" : "tie") : "", title: one?.group.label},
                one ? paperText(one, at, metric) : "–",
              ),
            ),
          ),
        ),
      ),
    ),
  );
  PAPER_TABLE.heads = ["method", ...DATA.streams.map(stream => stream.name)];
  PAPER_TABLE.rows = cells.map(([label, ...row]) => [
    label,
    ...row.map(one => (one ? marked(paperText(one, at, metric, 2), one.mark) : "–")),
  ]);
}

const PAPER_TABLE = {heads: [], rows: []};

function copyButtons(place, table, exact) {
  byId(place).replaceChildren(
    button("Copy LaTeX", event => {
      const {heads, rows} = table();
      copy(toLatex(heads, rows), event.target);
    }),
    button(
      "Markdown",
      event => {
        const {heads, rows} = table();
        copy(toMarkdown(heads, rows), event.target);
      },
      {"aria-label": "Copy Markdown"},
    ),
    button(
      "CSV",
      event => {
        const {heads, rows} = exact();
        copy(
          toCsv(
            heads,
            rows.map(row => row.map(cell => cell?.strong ?? cell?.tie ?? cell)),
          ),
          event.target,
        );
      },
      {"aria-label": "Copy CSV"},
    ),
  );
}
