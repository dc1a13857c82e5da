"""The page in a real browser: what people do with it, with a mouse, a keyboard or a screen reader."""

import re
import shutil
from itertools import pairwise

import pytest
from served import Odd, denied, promised_by, recourse, serve, to_json

from avcg import BlackBox, PointMass, Schema
from avcg.baselines.nearest import NearestUnlike
from avcg.serve.app import create_app
from avcg.serve.engine import ExplainerEngine

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium to look at the page with", allow_module_level=True)


NAMELESS = """() => [...document.querySelectorAll("input, select, button")].filter((one) => {
  if (one.hidden || one.closest("[hidden]")) return false;
  const labels = [...(one.labels || [])].map((label) => label.textContent).join("");
  return !(one.getAttribute("aria-label") || labels || (one.tagName === "BUTTON" ? one.textContent : "")).trim();
}).map((one) => one.outerHTML)"""

HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3")]
  .filter((one) => !one.closest("[hidden]")).map((one) => one.tagName)"""

# Texts whose contrast to what is behind them is below what WCAG asks at level AA.
POOR = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const behind = (one) => {
    const colour = parse(getComputedStyle(one).backgroundColor);
    return colour[3] === 0 ? behind(one.parentElement) : colour;
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const one = node.parentElement;
    const unseen = !node.textContent.trim() || !one.getClientRects().length;
    if (unseen || one.closest(".hidden, .skip, option, template, noscript")) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([node.textContent, (a + 0.05) / (b + 0.05)]);
  }
  return poor;
}"""


NOTED = "The next model is trained on the rows of this spring."


@pytest.fixture(scope="module")
def engine():
    return ExplainerEngine(recourse(), NOTED)


@pytest.fixture(scope="module")
def address(engine):
    found, stop = serve(create_app(engine, examples=to_json(denied().head(4))))
    yield found
    stop()


@pytest.fixture(scope="module")
def promising(engine):
    """As if there were models enough for the promise."""
    one = Odd(engine, engine.answer)
    one.statements = promised_by(engine)
    found, stop = serve(create_app(one, examples=to_json(denied().head(4))))
    yield found
    stop()


@pytest.fixture(scope="module")
def off_grid():
    """No other models, and numbers whose lowest and highest, 20.25 and 58.6, are no multiples of their step."""
    X = denied().assign(income=[*(20.25 + 2 * i for i in range(19)), 58.6])
    rule = BlackBox(lambda rows: (rows["income"] > 40) * 1.0, X, schema=Schema.infer(X).step("income", 0.5))
    found, stop = serve(create_app(ExplainerEngine(NearestUnlike(PointMass(rule)).fit(X))))
    yield found
    stop()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Open pages; whatever one logs as an error or throws fails the test."""
    contexts, troubles = [], []

    def open_page(address, *, routes=True, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        page.requests = []
        page.on("request", lambda asked: page.requests.append(asked.url))
        page.goto(address)
        if routes:
            page.wait_for_selector(".route")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [text for text in troubles if not text.startswith("Failed to load resource")]  # statuses are meant


def after(page, act):
    """Do something, and wait until its answer is shown."""
    with page.expect_response(re.compile("/explain$")) as response:
        act()
    found = response.value.json()
    expect(page.locator("#routes")).not_to_have_attribute("aria-busy", "true")
    return found["rows"][0], response.value.request.post_data_json


def changed(page):
    """The columns that the routes shown change."""
    return {item.get_attribute("data-column") for item in page.locator(".changes li").all()}


def lock(page, column):
    return page.locator(f'.feature[data-column="{column}"] .lock')


class TestPage:
    def test_it_loads_with_no_request_to_anywhere_else(self, opened, address):
        page = opened(address)
        assert all(url.startswith(address) for url in page.requests)
        assert {url.removeprefix(address) for url in page.requests} == {
            "", "static/page.css", "static/page.js", "static/theme.js", "static/icon.svg", "schema", "explain"
        }  # fmt: skip
        expect(page.locator("#decision")).to_have_text("0")
        assert 1 <= page.locator(".route").count() <= 3

    def test_a_route_says_what_changes_and_how_sure_that_is(self, opened, address):
        page = opened(address)
        row, _ = after(page, lambda: page.locator("#example").select_option("1"))
        best, first = row["options"][0], page.locator(".route").first
        for name, change in best["changes"].items():
            item = first.locator(f'li[data-column="{name}"]')
            expect(item).to_contain_text("becomes")
            if isinstance(change["after"], str):
                expect(item).to_contain_text(change["after"])
        sure = first.locator(".sure")
        expect(sure).to_have_text(best["agreement"][0].upper() + best["agreement"][1:] + ".")
        details = first.locator("details")
        expect(details.get_by_text(best["proof"])).to_be_hidden()  # a bound beside ok would seem to contradict it
        details.locator("summary").click()
        expect(details.get_by_text(best["proof"])).to_be_visible()
        expect(details).to_contain_text("independent draws")

    def test_without_a_promise_it_answers_and_says_so(self, opened, address):
        page = opened(address)
        expect(page.locator("#promise")).to_contain_text(
            "No promise for the target 1 that a retrained model accepts 95 of 100 people: a reliability of 0.9 needs 9"
            " models held back for calibration, and there are 3."
        )
        expect(page.locator(".route").first).to_be_visible()

    def test_the_promise_is_that_of_the_single_answer_which_comes_first(self, opened, promising):
        page = opened(promising)
        made, none = "At most a 1 in 10 chance that the next retrained model", "it was calibrated for single answers"
        single = recourse().generate(denied().head(1))
        shown = page.locator(".route").first.locator(".changes li")
        assert {item.get_attribute("data-column") for item in shown.all()} == set(next(iter(single)).changes)
        several = page.locator(".route").count() > 1
        expect(page.locator("#promise")).to_have_text(re.compile(f"^{'Route 1: ' * several}{made}"))
        if several:
            expect(page.locator("#aside")).to_have_text(re.compile(f"^Routes? 2.*{none}"))
        page.locator(".route").first.get_by_role("button", name="Copy as a sentence").click()
        if page.locator(".route").first.get_attribute("data-status") == "ok":
            expect(page.locator(".letter").first).to_contain_text(made)
        after(page, lock(page, "income").click)
        expect(page.locator("#promise")).to_contain_text(none)
        expect(page.locator("#promise")).not_to_contain_text(made)

    def test_another_row_is_another_answer(self, opened, address):
        page = opened(address)
        rows = to_json(denied().head(4))
        _, asked = after(page, lambda: page.locator("#example").select_option("2"))
        assert asked["rows"] == [rows[2]]
        income = page.get_by_label("Income, value")
        expect(income).to_have_value(str(rows[2]["income"]))
        _, asked = after(page, lambda: income.fill("33.25"))
        assert asked["rows"][0]["income"] == 33.25
        expect(page.locator("#example")).to_have_value("own")
        _, asked = after(page, lambda: page.get_by_label("Housing, value").select_option("own"))
        assert asked["rows"][0]["housing"] == "own"
        _, asked = after(page, lambda: page.get_by_label("months, by slider").fill("100"))
        assert asked["rows"][0]["months"] == 100
        expect(page.get_by_label("Months, value")).to_have_value("100")

    def test_what_is_locked_no_longer_changes(self, opened, address):
        page = opened(address)
        column = page.locator(".changes li").first.get_attribute("data-column")
        button = lock(page, column)
        expect(button).to_have_attribute("aria-pressed", "false")
        _, asked = after(page, button.click)
        assert column not in asked["vary"]
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(button).to_contain_text("Locked")
        assert column not in changed(page)
        _, asked = after(page, page.get_by_role("button", name="Remove all limits").click)
        assert "vary" not in asked
        expect(button).to_have_attribute("aria-pressed", "false")
        assert column in changed(page)

    def test_a_change_can_be_locked_where_it_is_shown(self, opened, address):
        page = opened(address)
        item = page.locator(".changes li").first
        column = item.get_attribute("data-column")
        after(page, item.get_by_role("button", name=re.compile("^Lock")).click)
        expect(lock(page, column)).to_have_attribute("aria-pressed", "true")
        assert column not in changed(page)

    def test_a_range_is_heeded(self, opened, address):
        page = opened(address)
        alone = recourse().generate(denied().head(4), vary=["income"]).statuses
        page.locator("#example").select_option(str(alone.tolist().index("ok")))
        for other in ("months", "owns", "housing", "rating"):
            row, _ = after(page, lock(page, other).click)
        best = row["options"][0]
        assert set(best["changes"]) == {"income"}
        before, wanted = best["changes"]["income"].values()
        feature = page.locator('.feature[data-column="income"]')
        upper = page.get_by_label("income: not above")
        bottom, top = recourse().space_.encoding.low[0], recourse().space_.encoding.high[0]
        half = round((before + wanted) / 2, 2)  # the column has steps of 0.01, and its slider shows them
        row, asked = after(page, lambda: upper.fill(str(half)))
        low, high = asked["ranges"]["income"]
        assert low == bottom
        assert before < high < wanted
        assert all(option["row"]["income"] <= high for option in row["options"])
        expect(feature.locator("output")).to_contain_text(f"to {high}")
        expect(page.locator(".route").first).not_to_have_attribute("data-status", "ok")
        row, asked = after(page, lambda: upper.fill(str(top)))
        assert "ranges" not in asked
        assert row["options"][0]["row"]["income"] == wanted

    def test_a_range_can_be_dragged_and_its_ends_never_cross(self, opened, address):
        page = opened(address)
        lower, upper = page.get_by_label("months: not below"), page.get_by_label("months: not above")
        box = upper.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 6, box["y"] + box["height"] / 2)
        page.mouse.down()
        with page.expect_response(re.compile("/explain$")):
            page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2, steps=8)
        page.mouse.up()
        top = int(upper.input_value())
        assert 20 < top < 60
        after(page, lambda: lower.fill("110"))
        assert int(lower.input_value()) == top

    def test_values_can_be_barred(self, opened, address):
        page = opened(address)
        feature = page.locator('.feature[data-column="housing"]')
        feature.locator("summary").click()
        _, asked = after(page, feature.get_by_label("own", exact=True).uncheck)
        assert asked["ranges"] == {"housing": ["free", "rent"]}
        expect(feature.locator("summary")).to_have_text("May become 2 of 3 values")
        after(page, feature.get_by_label("free").uncheck)
        _, asked = after(page, feature.get_by_label("rent").uncheck)
        assert "housing" not in asked["vary"]
        assert "housing" not in changed(page)

    def test_fewer_changes_and_another_target(self, opened, address):
        page = opened(address)
        row, asked = after(page, lambda: page.get_by_label("Maximum number of changes").select_option("1"))
        assert asked["max_changes"] == 1
        assert all(len(option["changes"]) <= 1 for option in row["options"])
        row, asked = after(page, lambda: page.get_by_label("Wanted decision").select_option(label="0"))
        assert asked["target"] == 0
        expect(page.locator(".route")).to_have_count(1)
        expect(page.locator(".route")).to_contain_text("Nothing needs to change")

    def test_effort_and_kind_of_answer(self, opened, address):
        page = opened(address)
        _, asked = after(page, lambda: page.get_by_label("Effort").select_option("thorough"))
        assert asked["effort"] == "thorough"
        assert "typicality" not in asked
        slider = page.get_by_label("Kind of answer")
        expect(slider).to_have_attribute("aria-valuetext", "50 % of the way from nearest to most typical")
        _, asked = after(page, lambda: slider.fill("0"))
        assert asked["typicality"] == 0
        expect(slider).to_have_attribute("aria-valuetext", "Nearest")
        after(page, lambda: slider.fill("1"))
        expect(slider).to_have_attribute("aria-valuetext", "Most typical")

    def test_nothing_left_is_said_in_honest_words(self, opened, address):
        page = opened(address)
        for column in denied().columns:
            after(page, lock(page, column).click)
        expect(page.locator(".route")).to_have_count(1)
        expect(page.locator(".route")).to_have_attribute("data-status", "immovable")
        expect(page.locator(".route")).to_contain_text("Nothing is allowed to change")

    def test_a_sentence_for_a_letter_is_copied(self, opened, address):
        page = opened(address, permissions=["clipboard-read", "clipboard-write"])
        row, _ = after(page, lambda: page.locator("#example").select_option("1"))
        page.locator(".route").first.get_by_role("button", name="Copy as a sentence").click()
        expect(page.locator(".route").first.get_by_role("button", name="Copied")).to_be_visible()
        sentence = page.evaluate("navigator.clipboard.readText()")
        assert sentence.startswith("If your ")
        best = row["options"][0]
        assert f"the decision would be 1 instead of 0. This change is {best['agreement']}. No promise for" in sentence
        assert f"Assumption: {NOTED} The held-out models" in sentence
        for name in best["changes"]:
            assert f"your {name} were " in sentence
        assert sentence.count(" instead of ") == len(best["changes"]) + 1
        expect(page.locator("#spoken")).to_contain_text(sentence)

    def test_a_letter_says_nothing_of_later_models_where_none_were_asked(self, opened, off_grid):
        page = opened(off_grid)
        after(page, lambda: page.get_by_label("Income, value").fill("25"))
        page.locator(".route").first.get_by_role("button", name="Copy as a sentence").click()
        expect(page.locator(".letter").first).to_contain_text("a later one may decide otherwise")

    def test_a_slider_off_its_grid_asks_for_nothing_by_itself(self, opened, off_grid):
        page = opened(off_grid)
        _, asked = after(page, lambda: page.get_by_label("Income, value").fill("25"))
        assert "ranges" not in asked
        ends = {"min": "20.5", "max": "58.5", "step": "0.5"}
        for name in ("not below", "not above", "by slider"):
            slider = page.get_by_label(re.compile(f"^income[:,] {name}$"))
            assert {end: slider.get_attribute(end) for end in ends} == ends
        _, asked = after(page, lambda: page.get_by_label("income: not above").fill("50.5"))
        assert asked["ranges"] == {"income": [20.5, 50.5]}
        _, asked = after(page, lambda: page.get_by_label("income, by slider").fill("30"))
        assert asked["rows"][0]["income"] == 30

    def test_an_older_answer_never_replaces_a_newer_one(self, opened, address):
        page = opened(address)
        page.evaluate("AbortController.prototype.abort = () => {}")  # so that the older one does arrive
        held = []

        def hold(route):
            """Hold what is asked for first; further routes are asked for after its answer."""
            held.append(route) if route.request.post_data_json["n"] == 1 else route.continue_()

        page.route("**/explain", hold)
        income = page.get_by_label("Income, value")
        for many, amount in enumerate(("20", "90"), 1):
            income.fill(amount)
            while len(held) < many:
                page.wait_for_timeout(20)
        older, newer = (page.request.post(f"{address}explain", data=one.request.post_data_json).json() for one in held)
        older["rows"][0]["decision"], newer["rows"][0]["decision"] = "older", "newer"
        held[1].fulfill(json=newer)
        expect(page.locator("#decision")).to_have_text("newer")
        with page.expect_response(re.compile("/explain$")):
            held[0].fulfill(json=older)
        page.wait_for_timeout(100)
        expect(page.locator("#decision")).to_have_text("newer")


class TestEverybody:
    def test_with_a_keyboard_alone(self, opened, address):
        page = opened(address)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the answer")).to_be_focused()
        target = lock(page, "income")
        for _ in range(12):
            page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                break
        expect(target).to_be_focused()
        assert target.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
        _, asked = after(page, lambda: page.keyboard.press("Space"))
        assert "income" not in asked["vary"]
        expect(target).to_be_focused()
        page.get_by_label("months: not above").focus()
        _, asked = after(page, lambda: page.keyboard.press("Home"))
        assert asked["ranges"]["months"][1] == 0
        copy = page.locator(".route").first.locator("[data-action^=keep]")
        copy.first.focus()
        after(page, lambda: page.keyboard.press("Enter"))
        assert page.evaluate("document.activeElement !== document.body")  # redrawing does not lose the place

    def test_an_answer_is_read_out(self, opened, address):
        page = opened(address)
        spoken = page.locator("#spoken")
        expect(spoken).to_have_attribute("aria-live", "polite")
        row, _ = after(page, lambda: page.locator("#example").select_option("3"))
        name = next(iter(row["options"][0]["changes"]))
        expect(spoken).to_contain_text("The decision now is 0.")
        expect(spoken).to_contain_text(f"{name} from ")

    def test_everything_has_a_name(self, opened, address):
        page = opened(address)
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.locator("h1").count() == 1
        nameless = page.evaluate(NAMELESS)
        assert nameless == []
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))
        levels = [int(tag[1]) for tag in page.evaluate(HEADINGS)]
        assert levels[0] == 1
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
        assert page.locator("fieldset > legend").count() >= denied().shape[1]

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_can_be_read_against_what_is_behind_it(self, opened, address, scheme):
        page = opened(address, color_scheme=scheme)
        after(page, lock(page, "income").click)
        poor = page.evaluate(POOR)
        assert poor == []

    def test_dark_follows_the_system_until_it_is_chosen(self, opened, address):
        page = opened(address, color_scheme="dark")
        shade = "getComputedStyle(document.body).backgroundColor"
        dark, button = page.evaluate(shade), page.get_by_role("button", name="Dark")
        expect(button).to_have_attribute("aria-pressed", "true")
        button.click()
        assert page.evaluate(shade) != dark
        expect(button).to_have_attribute("aria-pressed", "false")
        page.reload()
        page.wait_for_selector(".route")
        assert page.evaluate(shade) != dark  # remembered

    @pytest.mark.parametrize("width", [360, 768, 1200])
    def test_nothing_sticks_out(self, opened, address, width):
        page = opened(address, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 360:
            page.locator("#jump").click()
            expect(page.locator("#decision")).to_be_in_viewport()


class TestTrouble:
    def test_a_field_that_is_empty_says_so_and_nothing_is_asked(self, opened, address):
        page = opened(address)
        before = len(page.requests)
        income = page.get_by_label("Income, value")
        income.fill("")
        expect(page.get_by_text("Enter a number.").first).to_be_visible()
        expect(income).to_have_attribute("aria-invalid", "true")
        page.wait_for_timeout(250)
        assert len(page.requests) == before
        after(page, lambda: income.fill("40"))
        expect(income).to_have_attribute("aria-invalid", "false")

    def test_a_refusal_is_shown_in_its_own_words(self, opened, address):
        page = opened(address)
        reason = {"reason": "Column 'income' has a value too far away.", "where": None, "id": None}
        page.route("**/explain", lambda route: route.fulfill(status=503, json=reason))
        page.get_by_label("Income, value").fill("41")
        expect(page.get_by_role("alert")).to_have_text(reason["reason"])
        page.unroute("**/explain")
        after(page, lambda: page.get_by_label("Income, value").fill("42"))
        expect(page.locator("#problem")).to_be_hidden()

    def test_it_asks_for_a_token_where_one_is_needed(self, opened, engine):
        address, stop = serve(create_app(engine, token="right"))
        try:
            page = opened(address, routes=False)
            field = page.get_by_label("Token")
            expect(field).to_be_focused()
            field.fill("wrong")
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("alert")).to_have_text("The token is wrong.")
            field.fill("right")
            page.keyboard.press("Enter")
            page.wait_for_selector(".route")
            expect(page.locator("#entrance")).to_be_hidden()
            expect(page.locator("#chooser")).to_be_hidden()  # no examples were given
        finally:
            stop()
