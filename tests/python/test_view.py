"""`memfit view` in a real browser: what the page shows, with keys, in the dark, on a phone, and whom it talks
to.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from recorded_pages import Trace, full, page, training
from runs import MIB, invoke, memfit

PROGRAM = chromium.find()
in_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium is installed (or named by MEMFIT_CHROMIUM): the page is not opened"
)
APP = "window.memfit.app"
SLIDER = "document.querySelector('[role=slider]')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    training(folder / "run.pickle")
    training(folder / "wider.pickle", steps=9, extra=60)
    full(folder / "full.pickle")
    return folder


@pytest.fixture(scope="module")
def session() -> Iterator[chromium.Chromium]:
    assert PROGRAM
    with chromium.Chromium(PROGRAM) as browser:
        yield browser


@pytest.fixture
def browser(session: chromium.Chromium) -> Iterator[chromium.Chromium]:
    session.size(1280, 900)
    session.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    yield session
    assert session.complaints == [], "the page complains"


def outside(browser: chromium.Chromium, own: str) -> list[str]:
    return [url for url in browser.requests if url != own and not url.startswith("data:")]


def drawn(browser: chromium.Chromium) -> None:
    """Until what was asked for is on the screen."""
    browser.wait(
        f"{APP}.timeline.charts.every(chart => chart.columns && !chart.over.hasAttribute('aria-busy'))"
    )
    browser.evaluate("new Promise(good => requestAnimationFrame(() => requestAnimationFrame(good)))")


@in_browser
def test_the_page_shows_the_recording_and_makes_no_requests(browser, folder):
    url = page(folder, "run.pickle")
    browser.open(url)
    drawn(browser)
    peak = (4 * 100 + 30 * 20 + 64) * MIB
    info = browser.evaluate(f"{APP}.lanes[0].info.peak")
    assert info["allocated"] == peak
    assert "1.04 GiB" in browser.evaluate("document.getElementById('figures').innerText")
    assert browser.evaluate("document.title") == "run.pickle · memfit"
    assert outside(browser, url) == []
    # The tree's root is the reserved memory at the peak; the blocks are those that the Rust side counted.
    total = browser.evaluate(
        f"(async () => (await {APP}.lanes[0].liveAt({info['tick']})).reduce((sum, one) => sum + one.asked + one.rounding, 0))()"
    )
    assert total == peak
    # The chart is not empty: a pixel low in the column of the peak has a colour.
    painted = browser.evaluate(f"""(() => {{
        const chart = {APP}.timeline.charts[0];
        const x = Math.round(chart.x({info["tick"]} + 0.5) * chart.ratio);
        const context = chart.base.getContext("2d");
        return [...context.getImageData(x, chart.base.height - 5, 1, 1).data];
    }})()""")
    assert painted[3] == 255


@in_browser
def test_levels_of_detail_agree_with_the_blocks(browser, folder):
    browser.open(page(folder, "run.pickle"))
    drawn(browser)
    worst = browser.evaluate(f"""(async () => {{
        const lane = {APP}.lanes[0];
        let compared = 0, worst = 0;
        await lane.loadChunks(lane.info.chunks.map((_, number) => number));
        for (const columns of [1, 3, 10]) {{
            // Edges at whole bins: there both ways have to say the same, not only nearly.
            const ticks = 64 * Math.max(1, Math.floor(lane.ticks / columns / 64));
            const edges = Float64Array.from({{length: columns + 1}}, (_, at) => Math.min(lane.ticks, at * ticks));
            let binned;
            while (!(binned = lane.binnedColumns(edges, 0, edges[columns]))) await Promise.all(lane.pending.values());
            const exact = lane.exactColumns(edges, 0, edges[columns]);
            for (let column = 0; column < columns; column++) {{
                compared += 1;
                for (const field of ["high", "low", "reserved", "tick"])
                    worst = Math.max(worst, Math.abs(binned[field][column] - exact[field][column]));
                for (let place = 0; place < exact.at.length; place++)
                    worst = Math.max(worst, Math.abs(binned.at[place][column] - exact.at[place][column]));
            }}
        }}
        return {{worst, compared}};
    }})()""")
    assert worst == {"worst": 0, "compared": 14}


@in_browser
def test_everything_works_with_keys(browser, folder):
    browser.open(page(folder, "run.pickle"))
    drawn(browser)
    browser.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        browser.key("Tab")
        reached.add(
            browser.evaluate("document.activeElement.id || document.activeElement.getAttribute('role') || ''")
        )
    assert {"keys", "theme", "search", "slider", "zoom-in", "fit", "tab-tree"} <= reached
    browser.evaluate(f"{SLIDER}.focus()")
    assert browser.evaluate(f"getComputedStyle({SLIDER}).outlineStyle") != "none", "the focus can be seen"

    def now() -> int:
        drawn(browser)
        return int(browser.evaluate(f"{SLIDER}.getAttribute('aria-valuenow')"))

    at_peak = now()
    assert at_peak == browser.evaluate(f"{APP}.lanes[0].info.peak.tick"), "the cursor begins at the peak"
    browser.key(".")
    assert now() == at_peak + 1
    browser.key(",")
    browser.key(",")
    assert now() == at_peak - 1
    browser.key("End")
    assert now() == browser.evaluate(f"{APP}.lanes[0].ticks") - 1
    browser.key("p")
    assert now() == at_peak
    browser.key("n")
    assert "step 2" in browser.evaluate(f"{SLIDER}.getAttribute('aria-valuetext')") or now() > at_peak
    browser.key("p")
    width = browser.evaluate(f"{APP}.timeline.view.to - {APP}.timeline.view.from")
    browser.key("+")
    assert browser.evaluate(f"{APP}.timeline.view.to - {APP}.timeline.view.from") == width / 2
    browser.key("0")
    assert browser.evaluate(f"{APP}.timeline.view.to - {APP}.timeline.view.from") == width
    drawn(browser)
    browser.key("ArrowUp")
    browser.wait("!document.getElementById('details').hidden")
    assert "train.py:" in browser.evaluate("document.getElementById('details').innerText")
    assert browser.evaluate("document.getElementById('live').textContent") != "", "the choice is spoken"
    browser.key("Escape")
    browser.wait("document.getElementById('details').hidden")
    browser.key("/")
    assert browser.evaluate("document.activeElement.id") == "search"
    for letter in "train.py:42":
        browser.key(letter)
    # Four of a step's thirty blocks are of this line.
    browser.wait(
        "document.getElementById('found').textContent.includes('48 blocks, at most 80.0 MiB together')"
    )
    browser.key("Escape")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "slider"
    browser.key("?")
    assert browser.evaluate("document.getElementById('help').open") is True
    browser.key("Escape")
    browser.wait("!document.getElementById('help').open")
    browser.evaluate("document.getElementById('tab-tree').focus()")
    browser.key("ArrowRight")
    assert browser.evaluate("document.activeElement.id") == "tab-allocator"
    browser.wait("document.querySelectorAll('#panel-allocator canvas').length > 0")
    assert "35 segments" in browser.evaluate("document.getElementById('panel-allocator').innerText")


@in_browser
def test_seconds_ranges_and_private_pools(browser, folder):
    trace = Trace()
    for line in range(3):
        trace.alloc(200 * MIB, 10 + line)
    trace.annotate("START", "epoch 1")
    graph = trace.alloc(300 * MIB, 60, pool=(0, 7))
    for number in range(4):
        trace.annotate("START", f"batch {number}")
        trace.step()
        # Most of the time passes without any event.
        trace.time += 1_000_000
        trace.annotate("END", f"batch {number}")
    trace.annotate("END", "epoch 1")
    trace.free(graph)
    trace.write(folder / "ranges.pickle")
    browser.open(page(folder, "ranges.pickle"))
    drawn(browser)
    rows = browser.evaluate(f"{APP}.lanes[0].ranges.map(row => row.names)")
    assert rows[0] == ["epoch 1"]
    assert rows[1] == [f"batch {number}" for number in range(4)]
    assert browser.evaluate(f"Math.max(...{APP}.lanes[0].privatePools.value)") == 300 * MIB
    cursor = browser.evaluate(f"{SLIDER}.getAttribute('aria-valuenow')")
    browser.key("s")
    drawn(browser)
    assert (
        browser.evaluate("document.querySelector('[data-axis=time]').getAttribute('aria-pressed')") == "true"
    )
    assert browser.evaluate(f"{SLIDER}.getAttribute('aria-valuenow')") == cursor, (
        "the cursor stays where it was"
    )
    assert browser.evaluate(f"{APP}.timeline.end") > 4_000_000
    # A batch is a few hundred events and a second of nothing: along the seconds it is nearly a quarter of the
    # whole.
    shares = browser.evaluate(f"""(() => {{
        const chart = {APP}.timeline.charts[0];
        const {{from, to}} = chart.lane.ranges[1];
        const {{fromTime, toTime}} = chart.lane.ranges[1];
        return from.map((tick, at) => (chart.xOf(to[at], toTime[at]) - chart.xOf(tick, fromTime[at])) / chart.width);
    }})()""")
    assert all(0.24 < share < 0.26 for share in shares), shares
    # The optimizer's own range is a few microseconds, whatever comes after it.
    longest = browser.evaluate(
        f"(() => {{ const row = {APP}.lanes[0].ranges[2]; return Math.max(...row.toTime.map((end, at) => end - row.fromTime[at])); }})()"
    )
    assert 0 < longest < 1000
    for ticks in range(0, 200, 7):
        there = browser.evaluate(
            f"(() => {{ const c = {APP}.timeline.charts[0]; return c.toTick(c.fromTick({ticks})); }})()"
        )
        assert abs(there - ticks) < 1e-3
    browser.evaluate(f"{SLIDER}.focus()")
    browser.key(".")
    drawn(browser)
    assert browser.evaluate(f"{SLIDER}.getAttribute('aria-valuenow')") == str(int(cursor) + 1)
    names = browser.evaluate(f"{APP}.lanes[0].rangesAt({cursor}).map(range => range.name)")
    assert names[:2] == ["epoch 1", "batch 0"]
    browser.key("s")
    drawn(browser)
    assert browser.evaluate(f"{APP}.timeline.end") == browser.evaluate(f"{APP}.lanes[0].ticks")


@in_browser
def test_light_and_dark(browser, folder):
    url = page(folder, "run.pickle")
    surface = "getComputedStyle(document.querySelector('.card:not([hidden])')).backgroundColor"
    seen = {}
    for scheme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=scheme)
        browser.open(url)
        seen[scheme] = browser.evaluate(surface)
    assert seen["light"] != seen["dark"]
    browser.key("t")
    assert browser.evaluate(surface) == seen["light"], "the switch is stronger than the system"


@in_browser
def test_a_phone_wide_window_does_not_scroll_sideways(browser, folder):
    browser.size(360, 740, mobile=True)
    wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .stack, [hidden]') && e.getBoundingClientRect().right > 361).map(e => e.className || e.id || e.tagName)"
    for arguments in (["run.pickle"], ["run.pickle", "--compare", "wider.pickle"], ["full.pickle"]):
        browser.open(page(folder, *arguments))
        drawn(browser)
        browser.evaluate("document.querySelectorAll('#why details').forEach(more => more.open = true)")
        for panel in ("tree", "allocator", "leaks", "difference"):
            browser.evaluate(f"{APP}.moment.open('{panel}')")
            browser.evaluate("new Promise(good => setTimeout(good, 120))")
            assert browser.evaluate("document.documentElement.scrollWidth") <= 360, panel
            assert browser.evaluate(wide) == [], panel


@in_browser
def test_labels_in_the_chart_do_not_cover_each_other(browser, folder):
    """At a failure, the peak, the failed request and the card's line are at one place."""
    crossing = f"""{APP}.timeline.charts.flatMap(({{ captions }}) => captions.flatMap((one, index) =>
        captions.slice(index + 1).filter(other => Math.abs(one.top - other.top) < 14
            && one.left < other.left + other.width && other.left < one.left + one.width)))"""
    for width in (1280, 820, 360):
        browser.size(width, 900)
        browser.open(page(folder, "full.pickle"))
        drawn(browser)
        assert browser.evaluate(f"{APP}.timeline.charts[0].captions.length") >= 2, width
        assert browser.evaluate(crossing) == [], width


@in_browser
def test_reduced_motion_is_honoured(browser, folder):
    browser.prefer(prefers_reduced_motion="reduce")
    browser.open(page(folder, "run.pickle"))
    assert browser.evaluate("getComputedStyle(document.getElementById('theme')).transitionDuration") == "0s"


@in_browser
@pytest.mark.parametrize("arguments", [[], ["--confidential"]])
def test_the_explanation_is_at_the_top(browser, folder, arguments):
    browser.open(page(folder, "full.pickle", *arguments))
    drawn(browser)
    assert browser.evaluate("document.querySelector('#why h2').textContent")
    remedies = "[...document.querySelectorAll('#why .fixes > li > strong')].map(fix => fix.textContent)"
    names = browser.evaluate(remedies)
    assert len(names) > 3
    assert all(names), "each has its name"
    assert "autocast bf16" in names
    shown = "[...document.querySelectorAll('#why .fixes > li')].filter(fix => fix.checkVisibility()).length"
    assert browser.evaluate(shown) == 3
    browser.evaluate("document.querySelector('#why .others > summary').click()")
    assert browser.evaluate(shown) == len(names)


@in_browser
def test_two_recordings_side_by_side(browser, folder):
    browser.open(page(folder, "run.pickle", "--compare", "wider.pickle"))
    drawn(browser)
    browser.wait("document.querySelectorAll('#panel-difference tbody tr').length > 3")
    assert browser.evaluate("document.querySelectorAll('[role=slider]').length") == 2
    # Steps of both runs start at the same position.
    apart = browser.evaluate(f"""(() => {{
        const [one, other] = {APP}.timeline.charts;
        return one.lane.steps.tick.slice(0, 9).map((tick, step) => other.x(other.lane.steps.tick[step]) - one.x(tick));
    }})()""")
    assert len(apart) == 9
    assert max(map(abs, apart)) < 0.01
    lines = browser.evaluate("document.getElementById('panel-difference').innerText")
    assert "train.py:10" in lines
    assert "+60.0 MiB" in lines


@in_browser
def test_hostile_names_are_shown_and_do_nothing(browser, folder):
    name = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>.py"
    training(
        folder / "hostile.pickle", steps=2, file=f"/home/me/{name}", function="<svg/onload=window.pwned=1>"
    )
    browser.open(page(folder, "hostile.pickle"))
    drawn(browser)
    browser.key("Tab")
    browser.evaluate(f"{SLIDER}.focus()")
    browser.key("ArrowUp")
    browser.wait("!document.getElementById('details').hidden")
    assert name in browser.evaluate("document.getElementById('details').textContent")
    assert browser.evaluate("window.pwned") is None
    assert browser.evaluate("document.querySelectorAll('img').length") == 0


@in_browser
def test_it_is_served_on_loopback_behind_a_token(browser, folder):
    serving = subprocess.Popen(
        [memfit(), "view", "run.pickle", "--no-browser"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert serving.stdout
        url = serving.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        browser.open(url)
        drawn(browser)
        assert browser.evaluate(f"{APP}.lanes[0].info.blocks") == 4 + 12 * 31
        assert all(asked.startswith((url, "data:")) for asked in browser.requests), browser.requests
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(timeout=20)
    assert serving.returncode == -signal.SIGINT, "Ctrl-C ends it"


def test_confidential_pages_have_no_paths_and_lines(folder):
    secret = "/home/ada/unpublished/thesis.py"
    training(folder / "secret.pickle", steps=2, file=secret, function="secret_attention")
    written = {}
    for name, arguments in {"open": [], "closed": ["--confidential"]}.items():
        file = folder / f"{name}.html"
        assert invoke(["view", "secret.pickle", *arguments, "-o", str(file)], cwd=folder).status == 0
        text = file.read_text()
        manifest = text.split('id="manifest">')[1].split("</script>")[0]
        written[name] = text + unpacked(text, manifest)
    for word in ("ada", "unpublished", "thesis", "secret_attention", "secret.pickle"):
        assert word in written["open"]
        assert f"/{word}" not in written["closed"]
        assert f'"{word}"' not in written["closed"]
    assert "secret" not in written["closed"]
    assert "unpublished" not in written["closed"]


def unpacked(text: str, manifest: str) -> str:
    """All that a page's sections and manifest hold, as text."""
    import base64
    import re
    import zlib

    sections = re.findall(r'id="section-\d+">([^<]*)<', text)
    raw = [zlib.decompress(base64.b64decode(section), wbits=-15) for section in sections]
    return json.dumps(json.loads(base64.b64decode(manifest))) + "".join(
        part.decode("latin-1") for part in raw
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.pickle"], "nothing.pickle"),
        (["run.pickle", "--device", "7"], "device 7"),
        (["run.pickle", "-o", "no/such/folder.html"], "folder.html"),
    ],
)
def test_files_that_cannot_be_shown_are_errors(folder, arguments, said):
    done = invoke(["view", *arguments], cwd=folder)
    assert done.status == 2
    assert done.stdout == ""
    assert said in done.stderr
