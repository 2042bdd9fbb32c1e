// Cards: a chart with its heading, its controls, the table behind it and its downloads.

/** A card with a heading, a sentence, controls, a chart, its data and its downloads. */
function card({id, title, text, controls, draw, table, wide = true}) {
  const figure = h("figure", {class: "card chart", id, tabindex: "-1"});
  const body = h("div", {class: "plot"});
  const data = h("details", {class: "behind"}, h("summary", {}, "Data"));
  data.addEventListener("toggle", () => {
    if (data.open && data.children.length === 1) data.append(...dataTable(table(), title));
  });
  const tools = h(
    "div",
    {class: "tools"},
    data,
    button(
      "CSV",
      () => {
        const {heads, rows} = table();
        download(`${id}.csv`, toCsv(heads, rows), "text/csv");
      },
      {"aria-label": `${title}: download CSV`},
    ),
    button("SVG", () => download(`${id}.svg`, svgText(body.querySelector("svg")), "image/svg+xml"), {
      "aria-label": `${title}: download SVG`,
    }),
    button("PNG", () => downloadPng(body.querySelector("svg"), `${id}.png`), {
      "aria-label": `${title}: download PNG`,
    }),
  );
  figure.append(
    h("figcaption", {}, h("h3", {}, title), text ? h("p", {class: "soft"}, text) : null, controls ?? null),
    body,
    tools,
  );
  figure.classList.toggle("wide", wide);
  LATER.push(() => {
    body.replaceChildren(draw(printing ? (wide ? 680 : 330) : Math.max(260, body.clientWidth || 640)));
  });
  return figure;
}

/** Charts are drawn when their cards stand in the page and have a width. */
const LATER = [];

function dataTable({heads, rows}, title) {
  const shown = rows.slice(0, 400);
  const cells = (row, tag) =>
    row.map((cell, at) =>
      h(
        at === 0 ? "th" : tag,
        at === 0 ? {scope: tag === "th" ? "col" : "row"} : tag === "th" ? {scope: "col"} : {},
        typeof cell === "number" ? short(cell) : cell,
      ),
    );
  return [
    h(
      "div",
      {class: "scroll", tabindex: "0", role: "region", "aria-label": `data of ${title}`},
      h(
        "table",
        {class: "small"},
        h("caption", {}, title),
        h("thead", {}, h("tr", {}, cells(heads, "th"))),
        h(
          "tbody",
          {},
          shown.map(row => h("tr", {}, cells(row, "td"))),
        ),
      ),
    ),
    rows.length > shown.length ? h("p", {class: "soft"}, `${rows.length - shown.length} more rows in the CSV`) : "",
  ];
}

/** A chart as a file of its own: styles of the page become attributes. */
function svgText(svg) {
  const twin = svg.cloneNode(true),
    from = svg.querySelectorAll("*"),
    to = twin.querySelectorAll("*");
  from.forEach((node, at) => {
    const style = getComputedStyle(node);
    for (const name of [
      "fill",
      "stroke",
      "stroke-width",
      "stroke-dasharray",
      "opacity",
      "font-size",
      "font-weight",
      "text-anchor",
      "display",
    ])
      to[at].setAttribute(name, style.getPropertyValue(name));
  });
  twin.querySelectorAll(".cursor, .hit").forEach(node => node.remove());
  twin.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  twin.setAttribute("font-family", "Helvetica, Arial, sans-serif");
  twin.prepend(
    s("rect", {width: "100%", height: "100%", fill: getComputedStyle(document.body).getPropertyValue("--card")}),
  );
  return new XMLSerializer().serializeToString(twin);
}

function downloadPng(svg, name) {
  const picture = new Image(),
    box = svg.viewBox.baseVal;
  picture.onload = () => {
    const canvas = h("canvas", {width: 2 * box.width, height: 2 * box.height});
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => download(name, blob, "image/png"));
  };
  picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(svg));
}
