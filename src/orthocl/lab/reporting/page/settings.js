// Settings that differ, runs, how to make them again, and runs on their way.

function drawSettings() {
  const own = DATA.groups.filter(group => group.stream === streamIndex()),
    groups = visible(),
    names = differing(own);
  const shown = printing ? groups : groups.slice(0, 60),
    same = own.length ? Object.entries(own[0].all).filter(([name]) => !names.includes(name)) : [];
  const columns = names.filter(
    name =>
      name !== "method.name" &&
      !name.startsWith("method.settings.") &&
      shown.some(group => group.settings[name] !== undefined),
  );
  const ownSettings = group =>
    Object.entries(group.all)
      .filter(([name, value]) => name.startsWith("method.settings.") && value !== null)
      .map(([name, value]) => `${name.slice(16)}=${settingText(value)}`)
      .join("  ");
  return [
    h(
      "div",
      {class: "card"},
      h("h3", {}, "What differs"),
      h(
        "div",
        {class: "scroll", tabindex: "0", role: "region", "aria-label": "settings that differ"},
        h(
          "table",
          {class: "small"},
          h("caption", {class: "hide"}, "settings that differ"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", {scope: "col"}, "method"),
              columns.map(name => h("th", {scope: "col"}, name.replace(".settings.", ".").replace(".options.", "."))),
              h("th", {scope: "col"}, "hyperparameters of the method"),
            ),
          ),
          h(
            "tbody",
            {},
            shown.map(group =>
              h(
                "tr",
                {"data-m": group.m},
                h("th", {scope: "row"}, swatch(group), group.label),
                columns.map(name => h("td", {}, name in group.all ? hashed(name, group.all[name]) : "·")),
                h("td", {}, h("code", {}, ownSettings(group) || "none")),
              ),
            ),
          ),
        ),
      ),
      h("details", {}, h("summary", {}, `${same.length} settings are the same for all`), pairsTable2(same)),
    ),
    h(
      "details",
      {class: "card"},
      h(
        "summary",
        {},
        `Runs: ${shown.reduce((sum, group) => sum + group.runs.length, 0)} of ${shown.length} settings`,
      ),
      h(
        "div",
        {class: "scroll", tabindex: "0", role: "region", "aria-label": "runs"},
        h(
          "table",
          {class: "small"},
          h("caption", {class: "hide"}, "runs"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["method", "seed", "run", "AAC %", "resumed", "result hash"].map(name => h("th", {scope: "col"}, name)),
            ),
          ),
          h(
            "tbody",
            {},
            shown.flatMap(group =>
              group.runs.map(run =>
                h(
                  "tr",
                  {"data-m": group.m},
                  h("th", {scope: "row"}, swatch(group), group.label),
                  h("td", {}, String(run.seed)),
                  h("td", {}, h("code", {}, run.id)),
                  h(
                    "td",
                    {},
                    run.values.length
                      ? percent(run.values[DATA.metrics.findIndex(metric => metric.name === "aac")], 2)
                      : "–",
                  ),
                  h("td", {}, String(run.resumes)),
                  h("td", {}, h("code", {}, run.hash)),
                ),
              ),
            ),
          ),
        ),
      ),
    ),
  ];
}

const hashed = (name, value) =>
  name === "data" || name.endsWith("source") ? String(value).slice(0, 12) : settingText(value);
const pairsTable2 = entries =>
  h(
    "table",
    {class: "small pairs"},
    h(
      "tbody",
      {},
      entries.map(([name, value]) => h("tr", {}, h("th", {scope: "row"}, name), h("td", {}, hashed(name, value)))),
    ),
  );

// ---- reproduce --------------------------------------------------------------------------------------------------

function tomlValue(value, float = false) {
  if (Array.isArray(value)) return `[${value.map(one => tomlValue(one)).join(", ")}]`;
  if (typeof value === "string") return JSON.stringify(value).replace(/\u007f/g, "\\u007f");
  if (typeof value === "object")
    return `{ ${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)} = ${tomlValue(one)}`)
      .join(", ")} }`;
  return String(value);
}

/** The experiment file that makes the runs of a group again. */
function tomlOf(group) {
  const all = Object.entries(group.all).filter(([, value]) => value !== null),
    key = name => (/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name));
  const under = prefix =>
    all
      .filter(
        ([name]) =>
          name.startsWith(prefix) &&
          !name.slice(prefix.length).includes(".") &&
          !/(^|_)source$/.test(name.slice(prefix.length)),
      )
      .map(([name, value]) => [name.slice(prefix.length), value])
      .filter(([, value]) => !(Array.isArray(value) && value.length === 0 && prefix !== "net.settings."));
  const lines = pairs => pairs.map(([name, value]) => `${key(name)} = ${tomlValue(value)}`);
  const stream = DATA.streams[group.stream].name;
  return [
    `name = ${JSON.stringify(`${group.label} on ${stream}`)}`,
    `seeds = [${group.runs.map(run => run.seed).join(", ")}]`,
    "",
    "[train]",
    ...lines(under("train.")),
    "",
    "[net]",
    ...lines(under("net.").filter(([name]) => name === "name")),
    ...lines(under("net.settings.")),
    "",
    `[streams.${JSON.stringify(stream)}]`,
    `stream = ${JSON.stringify(group.all["stream.name"])}`,
    ...lines(under("stream.").filter(([name]) => name !== "name")),
    ...lines(under("stream.options.")),
    "",
    `[methods.${JSON.stringify(group.label)}]`,
    `method = ${JSON.stringify(group.all["method.name"])}`,
    ...lines(under("method.settings.")),
    "",
  ].join("\n");
}

const BIBTEX = `@inproceedings{farajtabar2020orthogonal,
  title = {Orthogonal Gradient Descent for Continual Learning},
  author = {Farajtabar, Mehrdad and Azizan, Navid and Mott, Alex and Li, Ang},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year = {2020}
}

@article{bennani2020generalisation,
  title = {Generalisation Guarantees for Continual Learning with Orthogonal Gradient Descent},
  author = {Abbana Bennani, Mehdi and Doan, Thang and Sugiyama, Masashi},
  journal = {arXiv:2006.11942},
  year = {2020}
}
`;

function copyable(id, title, text, more) {
  return h(
    "div",
    {class: "card", id},
    h(
      "div",
      {class: "row"},
      h("h3", {}, title),
      button("Copy", event => copy(text, event.target), {"aria-label": `Copy ${title}`}),
    ),
    more ?? null,
    h("pre", {tabindex: "0", role: "region", "aria-label": title}, h("code", {}, text)),
  );
}

function drawReproduce() {
  const own = DATA.groups.filter(group => group.stream === streamIndex()),
    group = own.find(one => one.label === state.pick) ?? visible()[0] ?? own[0];
  if (!group) return [];
  const choice = h(
    "label",
    {class: "pick"},
    "runs of ",
    h(
      "select",
      {
        id: "pick",
        onchange: event => {
          change({pick: event.target.value});
          byId("pick")?.focus();
        },
      },
      own.slice(0, 300).map(one => h("option", {value: one.label, selected: one === group}, one.label)),
    ),
  );
  const sources = Object.entries(group.all).some(([name, value]) => name.endsWith("source") && value)
    ? h(
        "p",
        {class: "soft"},
        "The runs use parts of your own: their files are in the folder of each run, under sources/.",
      )
    : null;
  const facts = [
    ["orthocl", DATA.version],
    ...DATA.versions.map(one => ["versions", pairsText(one)]),
    ...DATA.machines.map(one => ["machine", pairsText(one)]),
    ...DATA.streams[streamIndex()].fingerprints.map(print => ["data (SHA-256)", print]),
    ...group.runs.map(run => [`result of seed ${run.seed}`, run.hash]),
  ];
  return [
    h(
      "div",
      {class: "grid wide"},
      copyable("toml", "Experiment file", tomlOf(group), h("div", {}, choice, sources)),
      h(
        "div",
        {class: "stack"},
        copyable("command", "Command", DATA.command || "orthocl run experiment.toml --report report.html"),
        h(
          "div",
          {class: "card"},
          h("h3", {}, "Circumstances"),
          h(
            "table",
            {class: "small pairs"},
            h(
              "tbody",
              {},
              facts.map(([name, value]) =>
                h("tr", {}, h("th", {scope: "row"}, name), h("td", {}, h("code", {}, value))),
              ),
            ),
          ),
        ),
        copyable("bibtex", "BibTeX", BIBTEX),
      ),
    ),
  ];
}

const pairsText = one =>
  Object.entries(one)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
    .join(", ");

// ---- runs on their way ------------------------------------------------------------------------------------------

function drawLive() {
  const panel = byId("live"),
    runs = DATA.live ?? [];
  panel.hidden = !runs.length && !LIVE;
  document.querySelector('nav [data-section="live"]').hidden = panel.hidden;
  if (panel.hidden) return;
  const counts = Object.entries(Object.groupBy ? Object.groupBy(runs, run => run.state) : {}).map(
    ([name, some]) => `${some.length} ${name}`,
  );
  const finished = DATA.groups.reduce((sum, group) => sum + group.runs.length, 0);
  byId("live-body").replaceChildren(
    h("p", {}, [`${finished} finished`, ...counts].join(", ") + "."),
    runs.length
      ? h(
          "div",
          {class: "scroll", tabindex: "0", role: "region", "aria-label": "runs on their way"},
          h(
            "table",
            {class: "small"},
            h("caption", {class: "hide"}, "runs on their way"),
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["run", "state", "tasks", "accuracy so far"].map(name => h("th", {scope: "col"}, name)),
              ),
            ),
            h(
              "tbody",
              {},
              [...runs]
                .sort((a, b) => order(a) - order(b))
                .slice(0, 80)
                .map(run =>
                  h(
                    "tr",
                    {},
                    h("th", {scope: "row"}, swatch(run), `${run.stream} / ${run.method} / seed ${run.seed}`),
                    h("td", {title: run.reason}, run.state),
                    h(
                      "td",
                      {},
                      h("progress", {
                        value: run.done,
                        max: run.tasks || 1,
                        "aria-label": `${run.done} of ${run.tasks} tasks`,
                      }),
                      ` ${run.done}/${run.tasks || "?"}`,
                    ),
                    h(
                      "td",
                      {},
                      run.accuracies.length ? `${percent(run.accuracies[run.accuracies.length - 1])} %` : "–",
                    ),
                  ),
                ),
            ),
          ),
        )
      : "",
  );
}

const order = run => ["running", "failed", "unfinished", "new"].indexOf(run.state);
