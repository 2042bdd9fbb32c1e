// The page as a whole: tabs, chips, sections, keys, printing, and news while an experiment runs.

const SECTIONS = {
  curves: drawCurves,
  matrices: drawMatrices,
  cost: drawCost,
  monitors: drawMonitors,
  theory: drawTheory,
  certificates: drawCertificates,
  settings: drawSettings,
  reproduce: drawReproduce,
};
const LIVE = document.documentElement.dataset.live ?? "";

function drawTop() {
  const stream = DATA.streams[streamIndex()];
  byId("headline").textContent = stream?.headline ?? "No run has finished yet.";
  byId("tiles").replaceChildren(
    ...(stream?.tiles ?? []).map(([what, value, remark]) =>
      h(
        "div",
        {class: "tile"},
        h("div", {class: "what"}, what),
        h("div", {class: "big"}, value),
        h("div", {class: "soft"}, remark),
      ),
    ),
  );
  byId("tabs").replaceChildren(
    ...DATA.streams.map((one, at) =>
      h(
        "button",
        {
          type: "button",
          class: "tab",
          "aria-pressed": String(at === streamIndex()),
          onclick: () => {
            change({stream: one.name, a: "", b: "", pick: "", more: ""});
            byId("tabs").children[at]?.focus();
          },
        },
        one.name,
      ),
    ),
  );
  byId("tabs").parentElement.hidden = DATA.streams.length < 2;
  drawChips();
  const warned = DATA.groups.filter(group => group.stream === streamIndex() && group.warning);
  byId("warnings").replaceChildren(
    ...warned.slice(0, 3).map(group => h("li", {}, h("b", {}, group.label), ` is ${group.warning}`)),
    warned.length > 3 ? h("li", {}, `${warned.length - 3} more rows carry such a warning`) : "",
  );
  byId("failures").hidden = !DATA.failures.length;
  byId("failures-body").replaceChildren(
    ...DATA.failures.slice(0, 50).map(one => h("p", {}, h("b", {}, one.label), `: ${one.reason}`)),
  );
  byId("failures-title").textContent = `${DATA.failures.length} failed run${DATA.failures.length === 1 ? "" : "s"}`;
}

function drawChips() {
  const off = hidden(),
    methods = DATA.methods.filter(name =>
      DATA.groups.some(group => group.family === name && group.stream === streamIndex()),
    );
  byId("chips").replaceChildren(
    ...methods.map(name => {
      const group = DATA.groups.find(one => one.family === name);
      const set = event => {
        const next = event.altKey ? new Set(methods.filter(one => one !== name)) : new Set(off);
        if (!event.altKey) off.has(name) ? next.delete(name) : next.add(name);
        change({hide: [...next].join("\n")});
        [...byId("chips").children].find(chip => chip.dataset.method === name)?.focus();
      };
      return h(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-pressed": String(!off.has(name)),
          "data-method": name,
          style: `--c:${group.colour}`,
          onclick: set,
          title: "click: hide or show; Alt-click: only this one",
          onpointerenter: () => dim(group.m),
          onpointerleave: () => dim(-1),
          onfocus: () => dim(group.m),
          onblur: () => dim(-1),
        },
        swatch(group),
        name,
      );
    }),
    off.size ? button("show all", () => change({hide: ""}), {class: "chip plain"}) : "",
  );
}

/** Fade all methods but one, in every chart and table. */
function dim(m) {
  byId("dimming").textContent = m < 0 ? "" : `[data-m]:not([data-m="${m}"]) { opacity: .16; }`;
}

/** Sections whose content is older than the state; they are drawn when they come near the window. */
const STALE = new Set();
const NEAR = 700;

function render(name) {
  STALE.delete(name);
  LATER.length = 0;
  byId(`${name}-body`).replaceChildren(...SECTIONS[name]().filter(Boolean));
  LATER.forEach(work => work());
}

function isNear(name) {
  const area = byId(name).getBoundingClientRect();
  return area.bottom > -NEAR && area.top < innerHeight + NEAR;
}

function draw(all = false) {
  drawTop();
  drawLive();
  if (DATA.streams.length) {
    drawResults();
    drawPaperTable();
    for (const name of Object.keys(SECTIONS))
      if (all || printing || isNear(name)) render(name);
      else STALE.add(name);
  }
  dim(-1);
}

function chooseTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  draw();
}

function move(step) {
  const parts = [...document.querySelectorAll("main > section:not([hidden])")],
    now = parts.findLastIndex(part => part.getBoundingClientRect().top < 120);
  const next = parts[Math.min(parts.length - 1, Math.max(0, now + step))];
  next.scrollIntoView();
  next.querySelector("h2")?.focus({preventScroll: true});
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "j") move(1);
  if (event.key === "k") move(-1);
  if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  }
}

function beforePrint() {
  printing = true;
  document.documentElement.classList.add("printing");
  draw();
  document.querySelectorAll("main details:not(.behind)").forEach(part => {
    part.open = true;
  });
}

function afterPrint() {
  printing = false;
  document.documentElement.classList.remove("printing");
  draw(true);
}

/** While an experiment runs: ask now and then, and draw again when something has changed. */
async function follow() {
  try {
    const answer = await fetch(LIVE, {headers: follow.tag ? {"If-None-Match": follow.tag} : {}});
    if (answer.status === 200) {
      follow.tag = answer.headers.get("ETag");
      DATA = await answer.json();
      prepare();
      draw();
    }
    byId("live-state").textContent = "live";
  } catch {
    byId("live-state").textContent = "the server has stopped; this is its last word";
  }
  setTimeout(follow, 3000);
}

function arrive() {
  const at = readAddress();
  byId("search").value = state.q;
  draw(true);
  if (at) byId(at)?.scrollIntoView();
}

document.documentElement.classList.add("drawn");
prepare();
arrive();
copyButtons("results-copy", shownTable, exactTable);
copyButtons(
  "paper-copy",
  () => PAPER_TABLE,
  () => PAPER_TABLE,
);
byId("theme").addEventListener("click", chooseTheme);
byId("link").addEventListener("click", event => copy(location.href.split("#")[0] + address(), event.target));
byId("raw").addEventListener("click", () =>
  download("orthocl-report.json", byId("data").textContent, "application/json"),
);
let typing = 0;
byId("search").addEventListener("input", event => {
  clearTimeout(typing);
  typing = setTimeout(() => change({q: event.target.value.trim(), more: ""}), 120);
});
addEventListener("hashchange", arrive);
addEventListener("keydown", onKey);
addEventListener("beforeprint", beforePrint);
addEventListener("afterprint", afterPrint);
let lastWidth = innerWidth,
  resizing = 0;
addEventListener("resize", () => {
  if (innerWidth !== lastWidth && !printing) {
    lastWidth = innerWidth;
    clearTimeout(resizing);
    resizing = setTimeout(draw, 150);
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
document.querySelectorAll("nav a").forEach(link =>
  link.addEventListener("click", event => {
    event.preventDefault();
    history.replaceState(null, "", address(link.dataset.section));
    byId(link.dataset.section).scrollIntoView();
    byId(link.dataset.section).querySelector("h2")?.focus({preventScroll: true});
  }),
);
const observer = new IntersectionObserver(
  seen =>
    seen.forEach(one => {
      if (one.isIntersecting && STALE.has(one.target.id)) render(one.target.id);
    }),
  {rootMargin: `${NEAR}px`},
);
Object.keys(SECTIONS).forEach(name => observer.observe(byId(name)));
if (LIVE) follow();
