"""The report page in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

import csv
import io
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from orthocl.cli.view import look_at
from orthocl.lab import Store
from orthocl.lab.experiment.experiment import load_experiment
from orthocl.lab.reporting.chosen_runs import RecordCache
from orthocl.lab.reporting.escaping import latex_text, markdown_text
from orthocl.lab.reporting.report import write_report
from orthocl.lab.reporting.table import make_table
from orthocl.lab.reporting.view_server import ViewServer

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
COPIED = "navigator.clipboard.writeText = async text => { window.copied = text; }"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pairs(make_runs):
    return make_runs(streams=["rotated", "permuted"])


@pytest.fixture(scope="module")
def address(pairs, fill, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    store = fill(Store(folder / "store"), pairs)
    path = write_report(
        folder / "page.html", pairs, title="A title", store=store, command="orthocl run x.toml"
    )
    return path.as_uri()


@pytest.fixture
def open_page(browser, address):
    """Open the page, watch its console and its requests, and check in the end that there were none."""
    contexts, heard, asked = [], [], []

    def open_it(fragment="", where=None, **settings):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | settings))
        context.set_default_timeout(120_000)  # a busy machine is no defect
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((where or address) + fragment)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert heard == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def rows(page, column=1):
    return page.locator(f"#results-table tbody tr > :nth-child({column})").all_inner_texts()


def shows(page, count):
    playwright.expect(page.locator("#results-table tbody tr")).to_have_count(count, timeout=120_000)


def numbers(page, column):
    return [float(text.split("±")[0].split("\n")[0]) for text in rows(page, column)]


def open_data(page, card):
    """Open the table behind a chart, which the page makes only then."""
    page.locator(f"#{card} .behind summary").click()
    page.locator(f"#{card} .behind table").wait_for()


def test_sorting(open_page):
    page = open_page()
    assert [text.strip() for text in rows(page)] == ["sgd", "ewc", "ogd", "ogd+"]
    aac = page.get_by_role("button", name="AAC %")
    aac.click()
    found = numbers(page, 3)
    assert found == sorted(found, reverse=True)
    assert page.locator("th[aria-sort=descending]").count() == 1
    aac.click()
    assert numbers(page, 3) == sorted(found)
    page.get_by_role("button", name="Forgetting %").click()
    lost = numbers(page, 6)
    assert lost == sorted(lost), "the best first, which is the least"


def test_filtering_and_columns(open_page):
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("ogd+")
    shows(page, 1)
    assert "q=ogd" in page.url
    page.locator("#search").fill("no such thing")
    page.locator("#results-none").wait_for(state="visible")
    page.locator("#search").fill("")
    shows(page, 4)
    page.locator(".chooser summary").click()
    page.get_by_label("FWT %").uncheck()
    assert "FWT" not in page.locator("#results-table thead").inner_text()


def test_chips_hide_and_dim_in_every_chart(open_page):
    page = open_page()
    chip = page.locator(".chip[data-method=ewc]")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert [text.strip() for text in rows(page)] == ["sgd", "ogd", "ogd+"]
    page.locator("#cost").scroll_into_view_if_needed()
    for section in ("curves", "cost", "matrices"):
        page.locator(f"#{section} [data-m]").first.wait_for()
        playwright.expect(page.locator(f"#{section} [data-m='1']")).to_have_count(0, timeout=120_000)
    page.locator(".chip[data-method=sgd]").hover()
    assert page.evaluate("getComputedStyle(document.querySelector('#curves [data-m=\"2\"]')).opacity !== '1' || "
                         "document.querySelector('#dimming').textContent.includes('data-m=\"0\"')")  # fmt: skip
    page.get_by_role("button", name="show all").click()
    assert len(rows(page)) == 4


def test_streams(open_page, pairs):
    page = open_page()
    assert page.locator("h1").inner_text().startswith("On permuted, ogd+ keeps")
    page.get_by_role("button", name="rotated", exact=True).click()
    assert page.locator("h1").inner_text().startswith("On rotated, ogd+ keeps")
    values = [r.metric("aac") for s, r in pairs if s.method_label == "sgd" and s.stream_label == "rotated"]
    assert numbers(page, 3)[0] == pytest.approx(100 * np.mean(values), abs=0.051)


def test_the_difference_view(open_page, pairs):
    page = open_page("#stream=rotated")
    assert page.locator("#difference h3").inner_text() == "Difference: ogd+ minus sgd"
    page.locator("#difference").scroll_into_view_if_needed()
    page.select_option("#difference-a", "ogd")
    page.select_option("#difference-b", "ewc")
    assert page.locator("#difference h3").inner_text() == "Difference: ogd minus ewc"
    one, two = (
        np.mean(
            [r.result.accuracies for s, r in pairs if (s.method_label, s.stream_label) == (name, "rotated")],
            0,
        )
        for name in ("ogd", "ewc")
    )
    open_data(page, "difference")
    last = page.locator("#difference table tr").last.locator("td").all_inner_texts()
    assert [float(text) for text in last] == pytest.approx((one - two)[-1], abs=2e-4)


def test_the_data_behind_the_curves(open_page, pairs):
    page = open_page("#stream=rotated&hide=" + "%0A".join(["ewc", "ogd", "ogd%2B"]))
    open_data(page, "accuracy-curves")
    shown = page.locator("#accuracy-curves tbody td").all_inner_texts()
    own = [r.result.accuracies for s, r in pairs if (s.method_label, s.stream_label) == ("sgd", "rotated")]
    expected = [100 * np.mean([np.mean(rows[after][:after]) for rows in own]) for after in range(1, 5)]
    assert [float(text) for text in shown] == pytest.approx(expected, abs=0.06)


def test_deep_links(open_page):
    page = open_page("#stream=rotated&hide=ewc&sort=aac%3Aup&curve=task&task=2&cost=memory&at=cost")
    assert len(rows(page)) == 3
    assert numbers(page, 3) == sorted(numbers(page, 3))
    assert page.get_by_label("one task").is_checked()
    assert page.locator("#task").input_value() == "2"
    assert page.locator("#cost-accuracy h3").inner_text() == "Accuracy against memory"
    playwright.expect(page.locator("#cost")).to_be_in_viewport(timeout=60_000)
    page.evaluate(COPIED)
    page.locator("#link").click()
    twin = open_page("#" + page.evaluate("window.copied").split("#")[1])
    assert [text.strip() for text in rows(twin)] == [text.strip() for text in rows(page)]
    page.locator("#task").focus()
    page.keyboard.press("ArrowRight")
    assert "task=3" in page.url


def test_hover_and_keys_read_all_lines(open_page):
    page = open_page("#stream=rotated")
    chart = page.locator("#accuracy-curves svg")
    chart.scroll_into_view_if_needed()
    chart.hover()
    tip = page.locator("#accuracy-curves .tip")
    tip.wait_for(state="visible")
    assert len(tip.locator("div").all()) == 4
    chart.focus()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("tasks learnt 1")


def test_copies(open_page, pairs):
    page = open_page("#stream=rotated")
    page.evaluate(COPIED)
    own = [(s, r) for s, r in pairs if s.stream_label == "rotated"]
    table = make_table(own)
    page.locator("#results-copy button").nth(2).click()
    copied = list(csv.DictReader(io.StringIO(page.evaluate("window.copied"))))
    expected = list(csv.DictReader(io.StringIO(table.render("csv"))))
    for one, two in zip(copied, expected, strict=True):
        assert one["method"] == two["method"]
        assert float(one["aac"]) == pytest.approx(float(two["aac"]), rel=1e-5)
        assert float(one["aac spread"]) == pytest.approx(float(two["aac spread"]), rel=1e-2)
    page.locator("#results-copy button").nth(1).click()
    best = next(row for row in table.rows if row.method == "ogd+")
    assert f"| ogd+ | 3 | **{best.cells[0].text()}** |" in page.evaluate("window.copied")
    page.locator("#results-copy button").nth(0).click()
    assert rf"\textbf{{{latex_text(best.cells[0].text())}}}" in page.evaluate("window.copied")


def test_hostile_labels_are_text(browser, open_page, make_runs, tmp_path):
    label = "<img src=x onerror=alert(1)>|_*$\\~ =x"
    pairs = [
        (replace(s, method_label=label), replace(r, settings=replace(s, method_label=label)))
        for s, r in make_runs(methods=["sgd"], streams=["</script><b>"])
    ]
    path = write_report(tmp_path / "hostile.html", pairs, title="<i>t</i>")
    page = open_page(where=path.as_uri())
    assert rows(page)[0].strip() == label
    assert page.locator("img, main b >> text=script, header i").count() == 0
    page.evaluate(COPIED)
    page.locator("#results-copy button").nth(1).click()
    assert f"| {markdown_text(label)} |" in page.evaluate("window.copied")
    page.locator("#results-copy button").nth(0).click()
    assert f"{latex_text(label)} &" in page.evaluate("window.copied")


def test_the_experiment_file_makes_the_same_runs(open_page, pairs, tmp_path):
    page = open_page("#stream=rotated&pick=ogd%2B")
    file = tmp_path / "again.toml"
    file.write_text(page.locator("#toml code").inner_text())
    again = load_experiment(file)
    expected = [r.settings for s, r in pairs if (s.method_label, s.stream_label) == ("ogd+", "rotated")]
    assert [run.resolved() for run in again.runs] == expected
    assert [run.label for run in again.runs] == [f"rotated / ogd+ / seed {seed}" for seed in (1, 2, 3)]
    assert page.locator("#command code").inner_text() == "orthocl run x.toml"
    assert "@article" in page.locator("#bibtex code").inner_text()


def test_downloads(open_page):
    page = open_page()
    card = page.locator("#cost-accuracy")
    for kind, start in (("CSV", b"method,"), ("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            card.get_by_role("button", name=kind).click()
        with open(waiting.value.path(), "rb") as file:
            assert file.read(8).startswith(start[:8])
    with page.expect_download() as waiting:
        page.locator("#raw").click()
    assert waiting.value.suggested_filename == "orthocl-report.json"


def test_monitors_theory_certificates(open_page):
    page = open_page("#stream=rotated")
    assert "Only rounding" in page.locator("#monitor-leak").inner_text()
    assert "Rank correlation: sgd 1.00" in page.locator("#forecast-change").inner_text()
    assert page.locator("#theory-dissimilarity").count() == 1
    assert "Task 1 keeps 90 %" in page.locator("#certificates").inner_text()
    assert page.locator("#certificates td td").all_inner_texts() == ["1", "0.9"], (
        "entries are rows of a table"
    )
    assert page.locator("#cost .ghost").count() == 2, "dense OGD, as published, of ogd and ogd+"


def test_print(open_page):
    page = open_page("#stream=rotated", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.set_viewport_size({"width": 700, "height": 1000})
    assert page.locator("main details:not(.behind):not([open])").count() == 0
    heads = page.locator("#results-table thead th").all()
    right = page.evaluate("innerWidth")
    assert all((box := head.bounding_box()) and box["x"] + box["width"] <= right for head in heads)
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [320, 375, 768])
def test_no_page_is_wider_than_its_screen(open_page, width):
    page = open_page(viewport={"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    smallest = page.evaluate("""Math.min(...[...document.querySelectorAll('svg.none, #accuracy-curves svg text')]
        .map(text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getBoundingClientRect().width
             / text.ownerSVGElement.viewBox.baseVal.width))""")
    assert smallest > 10, "letters in charts keep their size"


CLIPPED = """[...document.querySelectorAll('main svg:not(.strip) text')].filter(text => {
    const [own, whole] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
    return own.left < whole.left - 1 || own.right > whole.right + 1 || own.bottom > whole.bottom + 1;
}).map(text => text.textContent)"""
COVERED = """[...document.querySelectorAll('#matrices svg')].flatMap(svg => {
    const boxes = [...svg.querySelectorAll('text.heat-value')].map(text => text.getBoundingClientRect());
    return boxes.slice(1).filter((box, at) => box.top === boxes[at].top && box.left < boxes[at].right);
}).length"""


@pytest.mark.parametrize("width", [1280, 390])
def test_names_and_numbers_have_room(open_page, make_runs, tmp_path, width):
    pairs = make_runs(
        streams=["rotated"],
        methods=["sgd", "ogd", "ogd+", "my-own-method-with-a-long-name"],
        tasks=15,
        changes=[{"momentum": 0.8}, {"momentum": 0.0, "learning_rate": 0.0125}],
    )
    where = write_report(tmp_path / "long.html", pairs, title="long").as_uri()
    page = open_page(where=where, viewport={"width": width, "height": 900})
    assert page.locator("#accuracy-curves").get_by_text("momentum=0.8", exact=False).count() >= 4
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(COVERED) == 0
    if width == 1280:
        table = page.locator("#results-table")
        assert table.evaluate("box => box.scrollWidth <= box.clientWidth"), (
            "no scrolling sideways on a desktop"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(browser, open_page, address, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = open_page("#stream=rotated", color_scheme=scheme, bypass_csp=True)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []
    low = page.evaluate("""[...document.querySelectorAll('text.heat-value')].map(text => {
        const colour = value => value.match(/\\d+/g).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        const light = value => { const [r, g, b] = colour(value); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const cell = text.parentElement.querySelector('rect').getAttribute('fill');
        const [a, b] = [light(getComputedStyle(text).fill), light(cell)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }).filter(contrast => contrast < 4.5).length""")
    assert low == 0, "numbers on coloured cells can be read"


def test_without_scripts(open_page, pairs):
    page = open_page(java_script_enabled=False)
    text = page.locator("noscript, main").first.inner_text()
    best = next(row for row in make_table(pairs).rows if row.method == "ogd+")
    assert best.cells[0].text() in text
    assert page.locator("main svg").count() == 2
    assert page.locator("#results").is_hidden()


def test_many_settings(open_page, make_runs, tmp_path):
    changes = [{"epochs": number} for number in range(1, 101)]
    pairs = make_runs(streams=["rotated"], methods=["sgd", "ogd"], seeds=[1], tasks=5, changes=changes)
    page = open_page(where=write_report(tmp_path / "many.html", pairs, title="many").as_uri())
    assert len(rows(page)) == 60
    page.get_by_role("button", name="Show all 200 rows").click()
    assert len(rows(page)) == 200
    page.locator("#search").fill("epochs=77")
    shows(page, 2)
    assert page.locator("#chips .chip").count() == 2, "a chip per method, not per setting"


def test_a_search_beside_a_method_is_its_best_point(open_page, make_runs, tmp_path):
    """Six points of a search and one run with another network, on a page that also has the method by its name alone."""
    pairs = make_runs(streams=["rotated", "permuted"], methods=["sgd", "ogd"])
    points = [
        pair
        for number in range(1, 7)
        for pair in make_runs(
            streams=["rotated"],
            methods=[f"ogd epochs={number}"],
            seeds=[1],
            changes=[{"epochs": 10 + number}],
        )
    ]
    page = open_page(where=write_report(tmp_path / "found.html", [*pairs, *points], title="t").as_uri())
    page.get_by_role("button", name="rotated", exact=True).click()
    assert sorted(rows(page)) == ["ogd", "ogd, best of 6 settings", "sgd"]
    assert page.locator("#chips .chip").all_inner_texts() == ["sgd", "ogd"]
    names = page.locator("#paper-table tbody th").all_inner_texts()
    assert names == ["sgd", "ogd", "ogd, other settings"]
    assert "(best of 6)" in page.locator("#paper-table tbody tr").nth(2).inner_text()
    page.get_by_role("button", name="Show all 8 rows").click()
    shows(page, 8)


def test_a_failed_method_does_not_squeeze_the_cost(open_page, make_runs, tmp_path):
    pairs = make_runs(streams=["rotated"], methods=["sgd", "ewc", "ogd"])
    spoilt = [
        (s, replace(r, result=replace(r.result, accuracies=[[0.1] * 4] * 5)))
        if s.method_label == "ewc"
        else (s, r)
        for s, r in pairs
    ]
    page = open_page(where=write_report(tmp_path / "low.html", spoilt, title="t").as_uri() + "#cost=memory")
    page.locator("#cost").scroll_into_view_if_needed()
    playwright.expect(page.locator("#cost text.end", has_text="ewc ↓ 10.0 %")).to_be_visible(timeout=60_000)
    ticks = [
        float(text)
        for text in page.locator("#cost svg text").all_text_contents()
        if re.fullmatch(r"[0-9.]+", text)
    ]
    assert min(ticks) > 40


def test_the_live_page_draws_news(browser, make_runs, store, tiny):
    pairs = make_runs(streams=["rotated"], methods=["sgd", "ogd"])
    for _, record in pairs[:3]:
        store.write_record(record)
    store.folder("abc").mkdir(parents=True)
    store.begin("abc", tiny("ogd+", 3), {})
    cache = RecordCache(store)
    server = ViewServer(lambda: look_at(cache, None, None))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        page = browser.new_page()
        heard = []
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.goto(server.address)
        assert "ogd+ / seed 3" in page.locator("#live").inner_text()
        assert len(rows(page)) == 1
        for _, record in pairs[3:]:
            store.write_record(record)
        shows(page, 2)
        assert re.search(r"6 finished, 1 unfinished", page.locator("#live").inner_text())
        assert heard == []
        page.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
