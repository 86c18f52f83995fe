"""The page in a real browser: what people read off it, and what hostile texts cannot do."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("uvicorn", reason="the page needs starlette and uvicorn")

from tests.server.page.browser import Tab, browser, sync_api, tab
from tests.server.page.story import HOSTILE, Served, Story, served

AXE = Path(__file__).parent / "axe" / "axe.min.js"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
VIEWS = {
    "fleet": "6 of 8 devices are connected",
    "run/flux": "8 devices form 4 groups",
    "newcomers": "3 newcomers asked for a model of this run",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator["sync_api.Browser"]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    with served(Story()) as found:
        yield found


@pytest.fixture
def open_tab(chromium: "sync_api.Browser", page: Served) -> Iterator[Tab]:
    with tab(chromium, page.address, page.link) as found:
        yield found


def test_a_stranger_reads_off_the_groups_the_gain_and_who_is_waited_for(open_tab: Tab) -> None:
    open_tab.show("run/flux", "8 devices form 4 groups; the mean accuracy is 91.4")
    open_tab.sees("Grouping gained +17.5\u00a0points over the one model of run fedavg")
    open_tab.sees("91.5\u00a0% instead of 74.0\u00a0%")
    open_tab.sees("6 of 8 reports are in")
    open_tab.show("fleet", "6 of 8 devices are connected")
    waits = open_tab.page.locator(".waits")
    assert "device-1" in waits.inner_text()
    assert "at most 1\u00a0min" in waits.inner_text()
    open_tab.sees("Attention: the disk of device-1 is full")
    open_tab.page.get_by_label("Group by").select_option("label:site")
    open_tab.page.locator("svg text", has_text="device-2").first.wait_for()


def test_a_figure_that_changed_while_it_was_hidden_is_drawn_again(open_tab: Tab) -> None:
    """As those of a run are, when another one was on the page before."""
    page = open_tab.page
    page.evaluate("""async () => {
        const { Panel } = await import(new URL("panel.js", document.querySelector("script").src));
        window.panel = new Panel({ title: "Runs", about: "", columns: [] });
        window.shown = (text) => panel.show({ rows: () => [], draw: (at) => at.replaceChildren(text) });
        // The page forbids what Playwright makes of a text that it waits for, so it waits by itself.
        window.until = (met) => new Promise((done) => {
            const look = () => met() ? done() : setTimeout(look, 50);
            look();
        });
        document.body.append(panel.element);
        shown("the first");
    }""")
    page.evaluate("until(() => panel.figure.innerText === 'the first')")
    page.evaluate("panel.element.hidden = true; until(() => panel.width === 0)")
    page.evaluate("shown('the second'); panel.element.hidden = false")
    page.evaluate("until(() => panel.figure.innerText === 'the second')")


def test_newcomers_are_shown_with_what_the_server_knows_and_what_it_does_not(open_tab: Tab) -> None:
    open_tab.show("newcomers/flux", VIEWS["newcomers"])
    open_tab.sees(
        "1 given a group's model by the server, 1 given none, as no group fits, 1 given several models"
    )
    open_tab.sees("with the choice kept on the device")
    open_tab.page.locator("svg text", has_text="c1 0.75").wait_for()
    open_tab.page.locator("svg text", has_text="own choice").wait_for()
    open_tab.page.get_by_role("button", name="Table", exact=True).click()
    rows = open_tab.page.get_by_role("region", name="Table: Placements").locator("tbody tr")
    assert rows.count() == 3
    chooses = rows.filter(has_text="given the models of c0, c1, c2, c3").inner_text()
    assert "not known" in chooses
    assert "nothing" in chooses
    open_tab.show("newcomers/fedavg", "No newcomer has asked for a model of this run.")


def test_releases_are_shown_with_their_channels_and_figures(open_tab: Tab) -> None:
    open_tab.show("fleet", "flux@10 since")
    open_tab.sees("stable (pinned)")
    open_tab.sees("90.0\u00a0% \u00b1 2.0\u00a0%")
    open_tab.sees("Trained by devices that are revoked: device-5")
    open_tab.sees("62.0\u00a0% \u00b1 10.0\u00a0% have other data than the model was made for")
    open_tab.sees("Before: device-7")
    open_tab.sees("10.0\u00a0% of the devices try flux@12 beside it, which may be worse by 1.0\u00a0points")
    open_tab.sees("2 devices, 97.0\u00a0% alike, 400 labels, \u22121.0\u00a0points to +6.0\u00a0points")


def test_every_figure_has_a_table_with_the_same_numbers(open_tab: Tab) -> None:
    open_tab.show("run/flux", VIEWS["run/flux"])
    panels = open_tab.page.locator("section.panel")
    for number in range(panels.count()):
        panel = panels.nth(number)
        button = panel.get_by_role("button", name="Table", exact=True)
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
        panel.locator("tbody tr").first.wait_for()
    gain = open_tab.page.get_by_role("region", name="Table: What grouping gained")
    assert "+16.0\u00a0points" in gain.inner_text()
    over_time = open_tab.page.get_by_role("region", name="Table: Groups over time")
    assert over_time.locator("tbody tr").count() == 2 * 8
    assert open_tab.page.locator(".legend li:has(.dashed)").all_inner_texts().count("mean") == 2
    open_tab.sees("In all, 80.0\u00a0kB were sent and 160.0\u00a0kB fetched.")


def test_the_keyboard_is_enough(open_tab: Tab) -> None:
    open_tab.show("run/flux", VIEWS["run/flux"])
    page = open_tab.page
    picture = page.locator("section", has=page.get_by_role("heading", name="Accuracy")).locator("svg")
    picture.focus()
    page.keyboard.press("End")
    readout = page.locator("section", has=page.get_by_role("heading", name="Accuracy")).locator(".readout")
    last = readout.inner_text()
    page.keyboard.press("ArrowLeft")
    assert last.startswith("Round 12: c0 94.2")
    assert readout.inner_text().startswith("Round 10: c0 93.0")
    button = page.get_by_role("button", name="Table", exact=True).first
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    page.get_by_role("link", name="Fleet", exact=True).focus()
    page.keyboard.press("Enter")
    open_tab.sees(VIEWS["fleet"])
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    chromium: "sync_api.Browser", page: Served, width: int, scheme: str
) -> None:
    script = AXE.read_text()
    assert hashlib.sha256(script.encode()).hexdigest() == AXE_SHA256
    with tab(chromium, page.address, page.link, width, scheme) as opened:
        for view, text in VIEWS.items():
            opened.show(view, text)
            for button in opened.page.get_by_role("button", name="Table", exact=True).all():
                if button.is_enabled():
                    button.click()
            opened.page.evaluate(script)
            found = opened.page.evaluate("axe.run()")
            assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_texts_are_shown_and_run_nowhere(chromium: "sync_api.Browser") -> None:
    with served(Story(names=HOSTILE)) as page, tab(chromium, page.address, page.link, 390) as opened:
        for view, text in VIEWS.items():
            opened.show(view, text)
            for button in opened.page.get_by_role("button", name="Table", exact=True).all():
                if button.is_enabled():
                    button.click()
            content = opened.page.content()
            assert opened.page.evaluate("window.pwned") is None
            assert opened.page.locator("img[src=x], [onerror], [onload]").count() == 0
            assert opened.page.locator("script:not([src$='/js/main.js'])").count() == 0
            assert not {"\u202e", "\u2066", "\u200b", "\x1b"} & set(content)
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
        opened.show("fleet", "window.pwned=1")


def test_a_picture_is_saved_as_svg_and_as_png(open_tab: Tab, tmp_path: Path) -> None:
    open_tab.show("run/flux", VIEWS["run/flux"])
    for kind in ("svg", "png"):
        with open_tab.page.expect_download() as download:
            open_tab.page.get_by_role("button", name=f"Save Groups over time as {kind.upper()}").click()
        assert download.value.suggested_filename == f"groups-over-time.{kind}"
        download.value.save_as(tmp_path / kind)
    drawing = ElementTree.parse(tmp_path / "svg").getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    cells = [
        each
        for each in drawing.iter("{http://www.w3.org/2000/svg}rect")
        if each.get("fill", "").startswith("rgb")
    ]
    assert len({each.get("fill") for each in cells}) >= 5
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG")


def test_what_changes_is_shown_and_a_server_that_is_away_too(chromium: "sync_api.Browser") -> None:
    story = Story(rounds=3)
    with served(story) as page, tab(chromium, page.address, page.link) as opened:
        opened.show("run/flux", "3 of 20 rounds of training are complete")
        story.rounds = 9
        opened.sees("9 of 20 rounds of training are complete")
        story.away = True
        opened.sees("The server does not answer")
        opened.sees("9 of 20 rounds of training are complete")
        story.away = False
        opened.sees("Live")


def test_a_thousand_changes_a_second_leave_the_page_usable(chromium: "sync_api.Browser") -> None:
    story = Story(rounds=1)
    with served(story, interval=0.001) as page, tab(chromium, page.address, page.link) as opened:
        opened.show("run/flux", "rounds of training are complete")
        for rounds in range(2, 1003):
            story.rounds = rounds
        opened.sees("1002 of 20 rounds of training are complete")
        opened.page.get_by_role("link", name="Fleet", exact=True).click()
        opened.sees(VIEWS["fleet"])


def test_a_run_that_does_not_exist_is_named(open_tab: Tab) -> None:
    open_tab.show("run/nothing", "there is no run 'nothing'")


def test_a_browser_without_a_session_is_shown_how_to_get_one(
    chromium: "sync_api.Browser", page: Served
) -> None:
    context = chromium.new_context()
    try:
        stranger = context.new_page()
        answer = stranger.goto(page.address)
        assert answer is not None
        assert answer.status == 401
        assert "fedserver page --link" in stranger.content()
    finally:
        context.close()
