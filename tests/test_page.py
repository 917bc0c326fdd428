"""The live page in a real browser: it shows a running operator, moves, explains, and is guarded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import http.client
import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from support.browsers import browser, missing, screenshot
from tidegate.operators.history.facts import History
from tidegate.operators.history.html import history_html
from tidegate.page.feed import BARS, POINTS, Reading, bars, moments
from tidegate.page.panels import header, waits
from tidegate.page.plot import COLOURS, TimePlot
from tidegate.page.server import Page
from tidegate.page.timeline import MAX_BARS, MAX_MARKS, MAX_POINTS, MAX_SOURCES, Line, Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

START = dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC)
PARTS = {"orders-0": 0, "orders-1": 3, "orders-2": 1}
needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")


class Shop:
    """An operator over orders of three partitions, driven second by second."""

    def __init__(self) -> None:
        pipeline = (
            tg.stream(
                time="ts",
                key="user",
                partition="part",
                watermark=tg.bounded("4 s", idle_after="60 s"),
            )
            .window(tg.tumbling("20 s"))
            .trigger(tg.after_watermark(early=tg.every("7 s"), late=tg.every_element()))
            .retracting()
            .allow_lateness("12 s")
            .aggregate(orders=tg.count(), total=tg.sum("v"))
        )
        self.op = pipeline.embedded(now=START)
        self.second = 0
        self._random = random.Random(4)

    def run(self, seconds: int, silent: str = "") -> None:
        """Deliver orders for some seconds; a silent partition delivers none."""
        for _ in range(seconds):
            self.second += 1
            now = START + dt.timedelta(seconds=self.second)
            self.op.add_messages(
                [self._order(now, part) for part in PARTS if part != silent for _ in range(12)],
                now=now,
            )
            self.op.timeout(now)

    def _order(self, now: dt.datetime, part: str) -> dict[str, Any]:
        usual = self._random.random() > 0.03
        late = self._random.expovariate(1 / 2.5) if usual else self._random.uniform(10, 40)
        return {
            "user": self._random.choice(("alice", "bob", "carol", "dave")),
            "part": part,
            "ts": now - dt.timedelta(seconds=late + PARTS[part]),
            "v": self._random.randint(1, 9),
        }


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def shop() -> Shop:
    found = Shop()
    found.run(60)
    return found


@pytest.fixture
def page(shop: Shop) -> Iterator[Page]:
    with shop.op.ui() as served:
        yield served


@pytest.fixture
def tab(chromium: Browser, page: Page) -> Iterator[Tab]:
    """The page in a tab; an error in its console fails the test."""
    visitor = chromium.new_context(viewport={"width": 1440, "height": 1100})
    opened = visitor.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("requestfailed", lambda request: problems.append(request.url))
    requested: list[str] = []
    opened.on("request", lambda request: requested.append(request.url))
    opened.goto(page.url)
    opened.get_by_text("Why is there no output yet?").wait_for()
    yield opened
    visitor.close()
    assert problems == []
    # Nothing comes from another host.
    assert {urlsplit(url).netloc for url in requested if url.startswith("http")} == {
        urlsplit(page.url).netloc
    }


def text(tab: Tab) -> str:
    """The text of the page, also within the shadow roots of Bokeh."""
    return tab.evaluate(
        """() => { const all = (node) => [...node.childNodes].map((one) =>
             one.nodeType === 3 ? one.data
             : one.tagName === 'STYLE' || one.tagName === 'SCRIPT' ? ''
             : (one.shadowRoot ? all(one.shadowRoot) : '') + ' ' + all(one)).join('');
             return all(document.body); }"""
    )


def drawn(tab: Tab) -> dict[str, Any]:
    """What the plot has: the number of bars, and where the watermark and the view end."""
    return tab.evaluate(
        """() => { const doc = Bokeh.documents[0];
             const data = (name) => [...doc.all_models].filter((one) =>
               one.type === 'ColumnDataSource' && name.every((key) => key in one.data));
             const bars = data(['x0', 'timing'])[0].data, marks = data(['x', 'y'])
               .filter((one) => Object.keys(one.data).length === 2)
               .map((one) => one.data.x.length);
             return { bars: bars.x0.length, marks: Math.max(...marks) }; }"""
    )


def wait_for(tab: Tab, words: str) -> None:
    tab.wait_for_function(
        """(words) => { const all = (node) => [...node.childNodes].map((one) =>
             one.nodeType === 3 ? one.data
             : (one.shadowRoot ? all(one.shadowRoot) : '') + all(one)).join('');
             return all(document.body).includes(words); }""",
        arg=words,
    )


# In the browser


@needs_browser
@pytest.mark.slow
def test_the_page_shows_the_operator_and_moves(tab: Tab, shop: Shop):
    before = drawn(tab)
    assert before["bars"] > 20
    assert f"{60 * 36:,} rows" in text(tab)
    assert "?token=" not in tab.url
    shop.run(60)
    wait_for(tab, f"{120 * 36:,} rows")
    after = drawn(tab)
    assert after["bars"] > before["bars"]
    assert after["marks"] > before["marks"]
    screenshot(tab, "page")


@needs_browser
@pytest.mark.slow
def test_the_explanation_changes_when_a_partition_falls_silent(tab: Tab, shop: Shop):
    assert "orders-1` holds the watermark back: it has promised" in text(tab)
    shop.run(30, silent="orders-2")
    wait_for(tab, "Partition `orders-2` holds the watermark back")
    assert "If it stays silent, it becomes idle" in text(tab)
    shop.run(45, silent="orders-2")
    wait_for(tab, "orders-2` is idle")
    screenshot(tab, "silent")


@needs_browser
@pytest.mark.slow
def test_the_history_of_a_key_appears(tab: Tab):
    tab.get_by_label("Key").fill("user=alice")
    tab.get_by_label("Window").fill("2026-03-01T10:00:20Z/2026-03-01T10:00:40Z")
    tab.get_by_role("button", name="Show history").click()
    wait_for(tab, "the watermark (")
    told = text(tab)
    assert "Key user=alice, window [2026-03-01T10:00:20Z, 2026-03-01T10:00:40Z)" in told
    assert "has reached the end of the window" in told
    screenshot(tab, "history")


@needs_browser
@pytest.mark.slow
def test_a_narrow_window_has_one_column(chromium: Browser, page: Page):
    visitor = chromium.new_context(viewport={"width": 420, "height": 900})
    narrow = visitor.new_page()
    narrow.goto(page.url)
    narrow.get_by_text("Why is there no output yet?").wait_for()
    narrow.wait_for_function("() => document.documentElement.scrollWidth <= 420")
    plots = narrow.locator(".bk-Figure").all()
    assert len(plots) == 5
    assert all(plot.bounding_box()["width"] > 300 for plot in plots)
    screenshot(narrow, "narrow")
    visitor.close()


@needs_browser
@pytest.mark.slow
def test_the_page_follows_the_scheme_of_the_browser(chromium: Browser, page: Page):
    visitor = chromium.new_context(viewport={"width": 1440, "height": 1100}, color_scheme="dark")
    dark = visitor.new_page()
    dark.goto(page.url)
    dark.get_by_text("Why is there no output yet?").wait_for()
    look = "element => getComputedStyle(element).backgroundColor"
    assert dark.locator("body").evaluate(look) == "rgb(15, 21, 33)"
    dark.wait_for_function(
        "() => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === 'Figure')"
        ".every(m => m.border_fill_color === '#182130')"
    )
    screenshot(dark, "dark")
    visitor.close()


def test_the_sources_have_the_colours_of_their_lines(shop: Shop):
    timeline = Timeline()
    timeline.add(Reading(shop.op.status()))
    assert [*timeline.colours()] == [*PARTS]
    assert len(set(timeline.colours().values())) == 3
    assert all(colour in waits(timeline) for colour in timeline.colours().values())


@needs_browser
@pytest.mark.slow
def test_what_a_user_enters_or_sends_is_no_html(tab: Tab, shop: Shop):
    late = START - dt.timedelta(hours=1)
    shop.op.add_messages([{"user": "<img src=x>", "part": "orders-0", "ts": late, "v": 1}])
    tab.get_by_label("Key").fill("user=<img src=x>")
    tab.get_by_role("button", name="Show history").click()
    wait_for(tab, "Key user=<img src=x>")
    tab.get_by_label("Window").fill("never <img src=x>")
    tab.get_by_role("button", name="Show history").click()
    wait_for(tab, "never <img src=x>")
    assert not tab.locator("img[src=x]").count()


@needs_browser
@pytest.mark.slow
def test_a_page_of_another_origin_reads_nothing(tab: Tab, chromium: Browser, page: Page):
    # The visitor has the cookie; a page of another origin of the same machine tries to use it.
    foreign = tab.context.new_page()
    foreign.goto("data:text/html,<p>another origin</p>")
    address = page.address.replace("http", "ws") + "ws"
    opened = foreign.evaluate(
        """(address) => new Promise((done) => { const socket = new WebSocket(address, ['bokeh']);
             socket.onopen = () => done('open'); socket.onerror = () => done('refused'); })""",
        address,
    )
    fetched = foreign.evaluate(
        """(address) => fetch(address, {credentials: 'include'})
             .then(() => 'read').catch(() => 'refused')""",
        page.address,
    )
    assert (opened, fetched) == ("refused", "refused")


@needs_browser
@pytest.mark.slow
def test_without_the_token_there_is_no_page(chromium: Browser, page: Page):
    stranger = chromium.new_page()
    assert stranger.goto(page.address).status == 403
    assert "token" in stranger.content()
    stranger.close()


# The guard


class Silent:
    """A feed with nothing to show."""

    name = "silent"
    has_phases = False

    def read(self) -> Reading:
        return Reading(None, error="nothing yet")

    def why(self, key: str, window: str) -> History:
        raise tg.InputError(f"{key} {window}")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Page]:
    with Page(Silent()).start() as served:
        yield served


def answer(page: Page, path: str = "/", **headers: str) -> tuple[int, http.client.HTTPMessage]:
    """The status and the headers of a request."""
    method = headers.pop("method", "GET")
    connection = http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        found = connection.getresponse()
        found.read()
        return found.status, found.headers
    finally:
        connection.close()


def token(page: Page) -> str:
    return page.url.partition("token=")[2]


def test_the_token_is_exchanged_for_a_cookie(guarded: Page):
    status, headers = answer(guarded, f"/?token={token(guarded)}")
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert token(guarded) not in cookie
    assert answer(guarded, Cookie=cookie.partition(";")[0])[0] == 200
    assert answer(guarded, Authorization=f"Bearer {token(guarded)}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/ws", "/autoload.js", "/metadata", "/static/js/bokeh.min.js"]
)
def test_nothing_is_served_without_a_token(guarded: Page, path: str):
    assert answer(guarded, path)[0] == 403
    assert answer(guarded, path, Authorization="Bearer x")[0] == 403
    assert answer(guarded, f"{path}?token=wrong")[0] == 403


def test_a_foreign_host_origin_or_method_is_refused(guarded: Page):
    bearer = f"Bearer {token(guarded)}"
    port = urlsplit(guarded.url).port
    assert answer(guarded, Authorization=bearer, Host=f"evil.example:{port}")[0] == 403
    assert answer(guarded, Authorization=bearer, Host=f"localhost:{port}")[0] == 200
    assert answer(guarded, Authorization=bearer, Origin="http://evil.example")[0] == 403
    assert answer(guarded, Authorization=bearer, Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert answer(guarded, Authorization=bearer, method="POST")[0] == 403
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Authorization": bearer}
    assert answer(guarded, "/ws", **upgrade)[0] == 403


def test_every_answer_forbids_foreign_content(guarded: Page):
    for authorization in (f"Bearer {token(guarded)}", "Bearer x"):
        _, headers = answer(guarded, Authorization=authorization)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"


def test_the_token_is_not_logged(guarded: Page, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("DEBUG"):
        answer(guarded, f"/?token={token(guarded)}")
        answer(guarded, "/?token=wrong")
    assert token(guarded) not in caplog.text
    assert token(guarded) not in repr(guarded)


def test_a_page_ends_with_its_context():
    shop = Shop()
    with shop.op.ui() as served:
        port = urlsplit(served.url).port
    with pytest.raises(ConnectionRefusedError):
        answer(served)
    with shop.op.ui(port=port) as again:
        assert urlsplit(again.url).port == port
        with pytest.raises(tg.SetupError, match="cannot use the port"):
            shop.op.ui(port=port)


# Bounds


def panes_of(starts: np.ndarray, clock: int = 5) -> pa.Table:
    n = len(starts)
    when = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "window_start": pa.array(starts).cast(when),
            "window_end": pa.array(starts + 10).cast(when),
            "op": ["+"] * n,
            "timing": ["on_time"] * n,
            "watermark": pa.array([7] * n, pa.int64()).cast(when),
            "emitted_at": pa.array([clock] * n, pa.int64()).cast(when),
        }
    )


def test_bars_of_one_moment_are_bounded_and_count_all_panes():
    few = bars(panes_of(np.repeat(np.arange(0, 50, 10), 4)))
    assert few.panes.tolist() == [4] * 5
    many = bars(panes_of(np.arange(10_000) * 3))
    assert len(many) <= BARS
    assert many.panes.sum() == 10_000
    assert (many.start.min(), many.end.max()) == (0, 9_999 * 3 + 10)


def test_late_rows_of_one_moment_are_a_sample():
    late = pa.table(
        {
            "ts": pa.array(range(10_000), pa.int64()),
            "watermark": pa.array([7] * 10_000, pa.int64()),
            "emitted_at": pa.array([5] * 10_000, pa.int64()),
        }
    )
    (moment,) = moments(pa.table({}), late, "ts")
    assert len(moment.late) <= POINTS
    assert moment.late_rows == 10_000


def test_a_timeline_is_bounded():
    timeline = Timeline()
    for clock in range(200):
        late = pa.table(
            {
                name: pa.array([clock] * 300, pa.int64())
                for name in ("ts", "watermark", "emitted_at")
            }
        )
        found = moments(panes_of(np.arange(500) * 10, clock), late, "ts", clock)
        timeline.add(Reading(None, found))
    assert len(timeline.bar_columns()["start"]) <= MAX_BARS
    assert len(timeline.late_columns()["time"]) <= MAX_POINTS
    line = Line(MAX_MARKS)
    for n in range(10_000):
        line.add(n, n)
    assert len(line.x) <= MAX_MARKS
    assert line.x == sorted(line.x)
    assert line.x[-1] == 9_999


def test_the_rate_of_rows_is_that_of_the_last_seconds(shop: Shop):
    """A batch counts all of its rows at once; readings between two batches see none."""
    timeline = Timeline()
    first = shop.op.status()
    (operator,) = first.operators
    (shard,) = operator.shards
    for second in range(40):
        # A batch of 50 rows every two seconds.
        counters = {**shard.counters, "events": 50 * (second // 2)}
        shards = (dataclasses.replace(shard, counters=counters),)
        operators = (dataclasses.replace(operator, shards=shards),)
        now = first.now + second * 1_000_000
        timeline.add(Reading(dataclasses.replace(first, now=now, operators=operators)))
    assert {sample.rate for sample in [*timeline.samples][15:]} == {25.0}


def test_times_of_today_are_short_and_their_tooltip_is_whole(shop: Shop):
    timeline = Timeline()
    timeline.add(Reading(shop.op.status()))
    shown = waits(timeline)
    assert re.search(r'<time title="2026-03-01T10:0\S+Z">10:0\d:\d\d\.\d{3}</time>', shown)
    assert not re.search(r"[^\"]2026-03-01T", shown)


def test_the_page_of_a_checkpoint_does_not_claim_to_know_whether_the_query_runs(shop: Shop):
    timeline = Timeline()
    timeline.add(Reading(dataclasses.replace(shop.op.status(), state="unknown")))
    assert ">from its checkpoint<" in header("clicks", timeline)


def test_late_panes_have_one_colour(shop: Shop):
    found = history_html(shop.op.why("alice"))
    assert re.search(rf"--c:{COLOURS['late']}[^>]*>(?:<[^>]*>[^<]*</span>)*Late pane", found)


def test_the_page_says_what_is_wrong_with_its_feed():
    class Broken(Silent):
        def read(self) -> Reading:
            raise OSError("the disk is gone")

    with Page(Broken()).start() as served:
        for _ in range(200):
            if served.timeline.error:
                break
            served.wait(0.01)
        assert re.search("OSError: the disk is gone", served.timeline.error)
        assert answer(served, Authorization=f"Bearer {token(served)}")[0] == 200


def test_the_axis_changes_when_the_first_event_shows_the_type_of_times():
    op = Shop().op
    plot, timeline = TimePlot(), Timeline()
    timeline.add(Reading(op.status()))
    plot.update(timeline)
    assert type(plot.figure.xaxis[0].ticker).__name__ == "DatetimeTicker", "before an event"
    for time, ticker in ((5, "BasicTicker"), (START, "DatetimeTicker")):
        other = tg.stream(time="ts").window(tg.tumbling(10, unit="us")).aggregate(n=tg.count())
        shown = other.embedded(now=START)
        shown.add_messages([{"ts": time}], now=START)
        timeline.add(Reading(shown.status()))
        plot.update(timeline)
        assert type(plot.figure.xaxis[0].ticker).__name__ == ticker
        assert plot.figure.xaxis[0].axis_label == "event time"


def test_the_axis_names_what_windows_measure():
    panes = tg.stream(offset="o").window(tg.tumbling(3, axis="offset")).aggregate(n=tg.count())
    op = panes.embedded(now=START)
    op.add_messages([{"o": 1}], now=START)
    plot, timeline = TimePlot(), Timeline()
    timeline.add(Reading(op.status()))
    plot.update(timeline)
    assert plot.figure.xaxis[0].axis_label == "offset"


def test_a_source_that_holds_the_watermark_back_has_a_line_of_many():
    mark = tg.bounded("1 s")
    stream = tg.stream(time="ts", partition="p", watermark=mark)
    op = stream.window(tg.tumbling("10 s")).aggregate(n=tg.count()).embedded(now=START)
    late = START - dt.timedelta(seconds=9)
    rows = [{"ts": late if n == 35 else START, "p": f"p-{n:02}"} for n in range(40)]
    op.add_messages(rows, now=START)
    timeline = Timeline()
    timeline.add(Reading(op.status()))
    assert "p-35" in timeline.colours()
    assert len(timeline.sources) == MAX_SOURCES + 1
