"""Look at every page of the site in a browser.

    python scripts/site/check.py [--site target/site/html] [--pictures FOLDER]

At three widths, light and dark: no page is wider than its window, nothing is fetched from elsewhere, nothing
is thrown, text and background differ enough, the keyboard reaches the navigation, and search finds a page.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

from chromium import Chromium, find  # noqa: E402

# Width of the window, and the scheme that the reader prefers.
WINDOWS = ((390, "light"), (820, "light"), (1400, "light"), (1400, "dark"))
LOADED = "true"
INDEX = "*search_index.json"
#: Contrast that text needs by WCAG 2.2, level AA.
CONTRAST = 4.5
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# The least contrast of running text to the page behind it, with the tag that has it.
LEAST_CONTRAST = """(() => {
  const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const part = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const over = (top, below) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map(index => top[index] * alpha + below[index] * (1 - alpha));
  };
  const behind = element => {
    const layers = [];
    for (let each = element; each; each = each.parentElement)
      layers.push(channels(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, layer) => layer.length ? over(layer, below) : below, [255, 255, 255]);
  };
  let least = [99, ""];
  for (const element of document.querySelectorAll("article p, article li, article td, article h1, article h2, article a, pre code")) {
    if (!element.textContent.trim() || element.classList.contains("headerlink")) continue;
    const page = behind(element), text = over(channels(getComputedStyle(element).color), page);
    const [high, low] = [light(text), light(page)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least[0]) least = [ratio, element.tagName + ": " + element.textContent.trim().slice(0, 40)];
  }
  return least;
})()"""
SEARCH = """(async () => {
  const field = document.querySelector("[data-md-component=search-query]");
  field.focus();
  field.value = "checkpointing";
  field.dispatchEvent(new Event("input", {bubbles: true}));
  field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true, key: "g"}));
  for (let turn = 0; turn < 100; turn++) {
    const found = document.querySelectorAll(".md-search-result__link");
    if (found.length) return [...found].map(each => each.getAttribute("href")).join(" ");
    await new Promise(done => setTimeout(done, 100));
  }
  return "";
})()"""
FOCUS = "document.activeElement.closest('nav, header, .md-skip') !== null || document.activeElement.matches('.md-skip')"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=ROOT / "target/site/html")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--only", default="**/*.html", metavar="GLOB", help="pages, such as `docs/run.html`")
    args = parser.parse_args()
    program = find()
    if program is None:
        print("no Chromium here: the pages were built, and not looked at", file=sys.stderr)
        return 0
    pages = sorted(path for path in args.site.glob(args.only) if path.name != "404.html")
    faults = []
    with served(args.site) as address, Chromium(program) as browser:
        requested, complaints = set(), set()
        # Every page loads the whole index, which takes longer than the page.
        browser.call("Network.setBlockedURLs", urls=[INDEX])
        for width, scheme in WINDOWS:
            browser.prefer(prefers_color_scheme=scheme)
            browser.size(width, 900)
            # The page remembers the scheme of the first visit.
            browser.open(f"{address}/index.html", LOADED)
            browser.evaluate("localStorage.clear()")
            for page in pages:
                name = page.relative_to(args.site)
                faults += [f"{fault} ({width}, {scheme})" for fault in look(browser, f"{address}/{name}")]
                requested |= set(browser.requests)
                mine = ("ERR_BLOCKED", "Error: Network error")
                told = [each for each in browser.complaints if not any(text in each for text in mine)]
                complaints |= {f"{name}: {each}" for each in told}
                if args.pictures:
                    args.pictures.mkdir(parents=True, exist_ok=True)
                    flat = name.with_suffix("").as_posix().replace("/", "-")
                    browser.screenshot(args.pictures / f"{flat}-{width}-{scheme}.png")
        browser.call("Network.setBlockedURLs", urls=[])
        browser.open(f"{address}/index.html", LOADED)
        browser.key("Tab")
        if not browser.evaluate(FOCUS):
            faults.append("the first Tab does not reach the navigation")
        if "docs/remedies/activation-checkpointing.html" not in browser.evaluate(SEARCH):
            faults.append("search for `checkpointing` does not find its page")
        elsewhere = {url for url in requested if url.startswith("http") and not url.startswith(address)}
        faults += [f"fetched from elsewhere: {url}" for url in sorted(elsewhere)]
        faults += [f"the browser complains of {complaint}" for complaint in sorted(complaints)]
    for fault in dict.fromkeys(faults):
        print(fault, file=sys.stderr)
    print(f"{len(pages)} pages in {len(WINDOWS)} windows: {len(faults)} faults")
    return int(bool(faults))


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the site on the loopback, and return its address."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def look(browser: Chromium, url: str) -> list[str]:
    """Return the faults of a page."""
    browser.open(url, LOADED)
    name, faults = url.split("/", 3)[3], []
    if (wider := browser.evaluate(WIDER)) > 0:
        faults.append(f"{name} is {wider} pixels wider than its window")
    ratio, where = browser.evaluate(LEAST_CONTRAST)
    if ratio < CONTRAST:
        faults.append(f"{name}: a contrast of {ratio:.1f} in {where}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
