"""Build the documentation as a site of static pages.

    python scripts/site/build.py [--out FOLDER]

The pages are the repository's own Markdown files under their own names, with the files that they link to, so
that every link works here and there. A page that is not in the navigation, a link to nothing and a missing
anchor are errors.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gallery

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SITE = ROOT / "target/site"
# Folders whose pages are all listed, by the word that stands for them in mkdocs.yml.
FOLDERS = {"REMEDIES": "docs/remedies", "CAUSES": "docs/causes", "MEASUREMENTS": "measurements"}
# Measurements, each with the guide that it belongs to.
CORPUS = ROOT / "docs/check-corpus.md"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
# HTML in Markdown names files, too.
SOURCE = re.compile(r'(?:src|srcset|href)="(?!https?:|#|mailto:)([^"#]+)"')
PAGE = re.compile(r"[\w./-]+\.md")


def titled(page: Path) -> str:
    """Return a page's entry in the navigation."""
    name = page.relative_to(ROOT).as_posix()
    title = next(line[2:] for line in page.read_text().splitlines() if line.startswith("# "))
    return f'{{"{title.replace(chr(34), chr(39))}": {name}}}'


def settings() -> str:
    """Return the settings with every page of the listed folders."""
    text = (HERE / "mkdocs.yml").read_text()
    for word, folder in FOLDERS.items():
        pages = sorted((ROOT / folder).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
        pages += [CORPUS] if word == "MEASUREMENTS" else []
        text = text.replace(f": {word}", f": [{', '.join(titled(page) for page in pages)}]")
    return text.replace("../../target/site/", "")


def collect(pages: Path, listed: set[str]) -> None:
    """Copy the listed pages, and all files that they link to."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    waiting, copied = sorted(listed - {"index.md"}), set()
    # The start is the README, whose links are those of the root.
    waiting.append("README.md")
    while waiting:
        name = waiting.pop()
        if name in copied:
            continue
        copied.add(name)
        source, target = ROOT / name, pages / ("index.md" if name == "README.md" else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            continue
        shutil.copy(source, target)
        if source.suffix != ".md":
            continue
        text = source.read_text()
        for link in {*LINK.findall(text), *SOURCE.findall(text)}:
            linked = (source.parent / link).resolve()
            if linked.exists() and linked.is_relative_to(ROOT):
                waiting.append(linked.relative_to(ROOT).as_posix())
    shutil.copy(HERE / "site.css", pages / "site.css")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SITE)
    out = parser.parse_args().out.resolve()
    text = settings()
    collect(out / "pages", set(PAGE.findall(text)))
    (out / "pages" / gallery.GUIDE.relative_to(ROOT)).write_text(gallery.guide(linked=True))
    gallery.write_pages(out / "pages/docs/gallery")
    (out / "mkdocs.yml").write_text(text)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--quiet",
            "--clean",
            "--config-file",
            str(out / "mkdocs.yml"),
        ],
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
