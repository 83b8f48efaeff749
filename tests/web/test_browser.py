"""The dashboard in a real browser: policy, accessibility, keys, refreshing, small screens; and the pictures of the docs.

``EMS_TEST_WRITE_IMAGES=1`` writes the pictures anew (docs/img).
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web
from tests.support.browser import browser, set_scheme, set_width
from tests.support.recycling import prepare_stream, recycled_database
from tests.support.servers import TestServers, few_flavors, fresh_database
from tests.support.streams import Stream, open_stream
from tests.support.waiting import until
from tests.web.stage import furnish

__all__ = ["browser"]

pytestmark = pytest.mark.slow
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
IMAGES = Path(__file__).parents[2] / "docs" / "img"
PAGES = (
    "/", "/topics", "/topics/orders", "/groups", "/groups/orders/workers", "/groups/orders/workers/reset?plan=1&to=earliest",
    "/groups/orders/workers/replay", "/messages?topic=orders", "/messages?topic=orders&where=tag=", "/messages/orders/0/20", "/trace?id=orders/0/1",
    "/dead", "/dead/orders/workers/0/1", "/dead/all/delete?error=TimeoutError", "/delayed", "/retries", "/running", "/clients", "/schedules",
    "/alarms", "/check", "/audit", "/topics/gone",
)  # fmt: skip
PICTURES = {"overview": "/", "trace": "/trace?id=orders/0/1", "dead": "/dead"}
_WAIT_S = 60
# Links of the menu that are outside of the window, and tables that are wider than their place.
_CUT = """
return [...document.querySelectorAll("nav a, .scroll")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth)
  .map((one) => one.outerHTML.slice(0, 300));
"""


@pytest.fixture(scope="module", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor: what the browser sees does not depend on it."""
    return servers.database(request.param)


@pytest.fixture(scope="module")
def stream(server: LocalDatabase) -> Iterator[Stream]:
    with recycled_database(server) as url, open_stream(url) as made:
        furnish(made, nasty=True)
        yield made


@contextmanager
def serving(url: str) -> Iterator[str]:
    """Serve the dashboard to an operator, in a thread; give its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        app = ems_web(url, access=lambda request: Visitor("ann", "operator"), operator_url=url)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(_WAIT_S)


@pytest.fixture(scope="module")
def site(stream: Stream) -> Iterator[str]:
    with serving(stream.url) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(browser: webdriver.Chrome, site: str) -> None:
    """Begin each test with a wide window in the light scheme, and without anything kept."""
    set_scheme(browser, "light")
    set_width(browser, 1280)
    browser.get(f"{site}/topics")
    browser.execute_script("localStorage.clear()")
    browser.get_log("browser")


def _loud(browser: webdriver.Chrome) -> list[str]:
    """What the browser has to say, but for the status of pages that are meant to be missing."""
    return [line["message"] for line in browser.get_log("browser") if "Failed to load resource" not in line["message"]]


def _wait(condition: Callable[[], Any]) -> Any:
    return until(condition, _WAIT_S, "the browser")


def _refreshed(browser: webdriver.Chrome) -> int:
    return int(browser.execute_script("return Number(document.documentElement.dataset.refreshed || 0)"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_pages_keep_to_the_policy_and_are_accessible(
    browser: webdriver.Chrome, site: str, scheme: str, width: int
) -> None:
    """Also with markup in every text of a user: a script that ran would leave an alert, and fail the next command."""
    set_scheme(browser, scheme)
    set_width(browser, width)
    axe = AXE.read_text(encoding="utf-8")
    serious = []
    for page in PAGES:
        browser.get(site + page)
        assert _loud(browser) == [], page
        browser.execute_script(axe)
        found = browser.execute_async_script("axe.run(document, {resultTypes: ['violations']}).then(arguments[0])")
        wrong = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        serious += [
            f"{page}: {one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in wrong
        ]
    assert serious == [], "\n".join(serious)


def test_pages_fit_a_small_screen(browser: webdriver.Chrome, site: str) -> None:
    set_width(browser, 320, 640)
    for page in PAGES:
        browser.get(site + page)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 320, page
        assert browser.execute_script(_CUT) == [], page
    browser.get(f"{site}/dead")
    cell = browser.find_element(By.CSS_SELECTOR, "#letters td[data-label=Error]")
    assert cell.is_displayed() and "CardDeclined" in cell.text
    browser.get(f"{site}/check")
    assert browser.find_element(By.CSS_SELECTOR, "td[data-label=Found]").text


def test_the_axis_shows_the_widest_duration(browser: webdriver.Chrome, site: str) -> None:
    browser.get(site)
    _wait(lambda: browser.find_elements(By.CSS_SELECTOR, "svg .tick[text-anchor=end]"))
    for text in ("1h 30m", "1m 30s", "2d 12h"):
        script = "const one = document.querySelector('svg .tick[text-anchor=end]'); one.textContent = arguments[0];"
        assert browser.execute_script(f"{script} return one.getBBox().x", text) >= 0, text


def test_the_menu_of_a_phone_is_one_line_until_it_is_opened(browser: webdriver.Chrome, site: str) -> None:
    def shown() -> tuple[bool, bool]:
        menu, link = browser.find_element(By.CSS_SELECTOR, ".menu"), browser.find_element(By.CSS_SELECTOR, ".side a")
        return menu.is_displayed(), link.is_displayed()

    set_width(browser, 1280)
    browser.get(site)
    assert shown() == (False, True)
    set_width(browser, 390)
    browser.get(site)
    assert shown() == (True, False)
    menu = browser.find_element(By.CSS_SELECTOR, ".menu")
    assert menu.size["height"] < 40
    menu.find_element(By.TAG_NAME, "summary").click()
    assert shown() == (True, True) and browser.execute_script(_CUT) == []
    browser.find_element(By.LINK_TEXT, "Groups").click()
    _wait(lambda: browser.current_url == f"{site}/groups")
    assert shown() == (True, False)


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_are_on_one_line_and_a_filter_leaves_room_for_its_rows(
    browser: webdriver.Chrome, site: str, width: int
) -> None:
    set_width(browser, width)
    browser.get(site)
    lines = "const one = document.querySelector('.stat b'), before = one.offsetHeight; one.textContent = arguments[0]; return one.offsetHeight / before"
    for text in ("25m 33s", "23h 59m", "365d 23h"):
        assert browser.execute_script(lines, text) == 1, text
    for page, said in (
        ("/dead?topic=orders", "Filter: topic orders"),
        ("/messages?topic=orders&key=k", "Filter: topic orders, key k"),
    ):
        browser.get(site + page)
        summary, field = (
            browser.find_element(By.CSS_SELECTOR, f".filters {part}") for part in ("summary", "[name=topic]")
        )
        assert field.is_displayed() == (width > 800)
        if width < 800:
            assert summary.text == said
            summary.click()
            assert field.is_displayed()


def test_keys_lead_everywhere(browser: webdriver.Chrome, site: str) -> None:
    def press(*keys: str) -> None:
        for key in keys:
            browser.switch_to.active_element.send_keys(key)

    press("g", "d")
    _wait(lambda: browser.current_url == f"{site}/dead")
    press("/")
    assert browser.switch_to.active_element.get_attribute("id") == "jump"
    press("orders/0/1", Keys.ENTER)
    _wait(lambda: "/trace?id=orders" in browser.current_url)
    press("?")
    assert browser.find_element(By.ID, "keys").is_displayed()
    press(Keys.ESCAPE)
    assert not browser.find_element(By.ID, "keys").is_displayed()
    for theme in ("light", "dark"):
        press("t")
        assert browser.execute_script("return document.documentElement.dataset.theme") == theme
    browser.get(f"{site}/dead")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    before = _refreshed(browser)
    press("r")
    _wait(lambda: _refreshed(browser) > before)
    assert _loud(browser) == []


def test_focus_survives_refreshing_which_waits_for_people(browser: webdriver.Chrome, site: str) -> None:
    browser.execute_script("localStorage.setItem('ems-every', '2')")
    browser.get(f"{site}/dead?topic=orders")
    link = browser.find_element(By.CSS_SELECTOR, "#letters tbody tr:nth-child(3) a")
    browser.execute_script("arguments[0].focus()", link)
    browser.execute_script("document.querySelector('#live').scrolled = true")
    before = _refreshed(browser)
    _wait(lambda: _refreshed(browser) > before)
    assert browser.switch_to.active_element == link and browser.execute_script(
        "return document.querySelector('#live').scrolled"
    )
    dot = browser.find_element(By.ID, "dot")
    assert dot.get_attribute("class") == "dot"
    browser.find_element(By.CSS_SELECTOR, "#letters tbody tr:nth-child(2) input").click()
    assert dot.get_attribute("class") == "dot still"
    assert browser.find_element(By.ID, "requeue").text == "Requeue selected (1)"
    browser.find_element(By.CSS_SELECTOR, "#letters tbody tr:nth-child(2) input").click()
    _wait(lambda: dot.get_attribute("class") == "dot")
    browser.find_element(By.ID, "jump").send_keys("half a wo")
    _wait(lambda: dot.get_attribute("class") == "dot still")
    browser.get(f"{site}/trace?id=orders/0/1")  # what was unfolded stays so
    browser.find_element(By.CSS_SELECTOR, "#body summary").click()
    before = _refreshed(browser)
    _wait(lambda: _refreshed(browser) > before)
    assert browser.find_element(By.CSS_SELECTOR, "#body pre").is_displayed()


def test_a_dead_letter_is_requeued_by_keyboard_alone(browser: webdriver.Chrome, site: str, stream: Stream) -> None:
    before = stream.value("SELECT COUNT(*) FROM ems_dead")
    browser.get(f"{site}/dead?topic=orders")

    def walk(key: str, where: str) -> None:
        for _ in range(200):
            browser.switch_to.active_element.send_keys(key)
            if (browser.switch_to.active_element.get_attribute("id") or "").startswith(where):
                return
        raise AssertionError(f"{where} is not reached")

    walk(Keys.TAB, "c-")
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    walk(Keys.SHIFT + Keys.TAB, "requeue")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    _wait(lambda: "did=" in browser.current_url)
    assert "1 changed" in browser.find_element(By.CLASS_NAME, "did").text and "topic=orders" in browser.current_url
    assert stream.value("SELECT COUNT(*) FROM ems_dead") == before - 1


def test_another_site_changes_nothing(browser: webdriver.Chrome, site: str, stream: Stream) -> None:
    fields = "<input name=topic value=mails><input name=group value=senders><input name=what value=pause>"
    form = f"<form method=post action='{site}/do/pause'>{fields}<button id=b>Win a prize</button></form>"
    browser.get(f"data:text/html,{form}")
    browser.find_element(By.ID, "b").click()
    _wait(lambda: "did not come from a page of the dashboard" in browser.page_source)
    assert stream.value("SELECT paused FROM ems_group WHERE name = 'senders'") == 0


def test_pictures_of_the_documentation(browser: webdriver.Chrome, server: LocalDatabase, tmp_path: Path) -> None:
    folder = IMAGES if os.environ.get("EMS_TEST_WRITE_IMAGES") else tmp_path
    with recycled_database(server) as url, open_stream(url) as stream:
        furnish(stream, rich=True)
        with serving(url) as address:
            for scheme in ("light", "dark"):
                set_scheme(browser, scheme)
                for name, page in PICTURES.items():
                    set_width(browser, 1180, 660)
                    browser.get(address + page)
                    assert browser.save_screenshot(str(folder / f"{name}-{scheme}.png"))
    for name in PICTURES:
        for scheme in ("light", "dark"):
            assert (IMAGES / f"{name}-{scheme}.png").stat().st_size < 150_000


def test_pages_come_back_with_the_database(browser: webdriver.Chrome, server: LocalDatabase) -> None:
    with fresh_database(server) as url, serving(url) as address:
        prepare_stream(url)
        browser.get(f"{address}/groups")
        browser.execute_script("document.body.kept = true")
        server.kill()
        browser.switch_to.active_element.send_keys("r")
        _wait(lambda: "MySQL cannot be reached" in browser.find_element(By.ID, "live").text)
        server.start()
        browser.switch_to.active_element.send_keys("r")
        _wait(lambda: "There is no such group" in browser.find_element(By.ID, "live").text)
        assert browser.execute_script("return document.body.kept")  # the page itself was not loaded again
