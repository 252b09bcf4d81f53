"""The gallery: recordings that open in the viewer.

    python scripts/site/gallery.py                  # rewrite docs/gallery.md from gallery.toml
    python scripts/site/gallery.py --pages FOLDER   # run each script, and write its viewer's page

The site has the pages; the repository has only how to make them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("gallery.toml")
GUIDE = ROOT / "docs/gallery.md"
TEXT = """# Gallery: recordings to look at

What does training look like in memory, and what do the usual mistakes look like?
{where}

{entries}
## Make one

```console
$ {make}
FITS  …
…
$ memfit view target/first.memfit -o target/first.html
```

[view.md](view.md) has the viewer's keys; [causes](causes/README.md) explains each out-of-memory error.

<!-- Written by `python scripts/site/gallery.py` from scripts/site/gallery.toml. -->
"""
HERE = "Each command below makes a recording; the documentation's site has them as pages to open."
LINKED = "Each opens in the viewer of `memfit view`, in the browser; nothing is sent anywhere."


@dataclass(frozen=True)
class Entry:
    """A recording of the gallery."""

    name: str
    title: str
    options: str
    script: str
    look: str

    @property
    def command(self) -> str:
        """Return the command that makes the recording."""
        return f"memfit run {self.options} -o {self.name}.memfit -- python {self.script}"


def entries() -> list[Entry]:
    """Return the gallery's entries in their order."""
    return [Entry(**each) for each in tomllib.loads(LIST.read_text())["recording"]]


def guide(*, linked: bool) -> str:
    """Return the page, on the site with links to the recordings."""
    found = entries()
    parts = []
    for each in found:
        link = f"[Open the recording](gallery/{each.name}.html)\n\n" if linked else ""
        parts.append(f"## {each.title}\n\n{each.look}\n\n{link}```sh\n{each.command}\n```\n")
    make = found[0].command.replace(f"-o {found[0].name}.memfit", "-o target/first.memfit --quiet")
    return TEXT.format(where=LINKED if linked else HERE, entries="\n".join(parts), make=make)


def memfit() -> str:
    """Return the command named by MEMFIT_COMMAND, or the project's own."""
    return os.environ.get("MEMFIT_COMMAND") or str(ROOT / ".venv/bin/memfit")


def write_page(entry: Entry, folder: Path) -> Path:
    """Run an entry's script, and write its page."""
    page = folder / f"{entry.name}.html"
    with tempfile.TemporaryDirectory() as place:
        words = [memfit(), *shlex.split(entry.command)[1:]]
        for name in ("examples", "workloads"):
            (Path(place) / name).symlink_to(ROOT / name)
        # An out-of-memory error is what some are there to show.
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
        recording = Path(place) / f"{entry.name}.memfit"
        if not recording.exists():
            raise RuntimeError(f"{entry.name}: {done.stdout}{done.stderr}")
        view = [memfit(), "view", str(recording), "-o", str(page)]
        subprocess.run(view, capture_output=True, check=True)
    return page


def write_pages(folder: Path) -> None:
    """Write the pages of all entries into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries():
        page = write_page(entry, folder)
        print(f"{page.name}: {page.stat().st_size >> 10} KiB", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=Path, help="run the scripts, and write their pages into this folder")
    folder = parser.parse_args().pages
    if folder is None:
        GUIDE.write_text(guide(linked=False))
    else:
        write_pages(folder)


if __name__ == "__main__":
    main()
