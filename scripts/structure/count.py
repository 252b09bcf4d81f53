"""Count the structure of a checkout: lines, crates, files, macros, cycles, and the places that one addition
touches.

    python scripts/structure/count.py [ROOT …]

One column per checkout. A *place* is a product file that names an existing lever, rule or CUDA call of the
plain kind: as many files as the next one of its kind will touch.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]

# An addition of the plain kind, by the names under which product code knows it.
ADDITIONS = {
    "lever (`channels-last`)": r"channels-last|ChannelsLast|\bchannels_last\b(?!=|\))",
    "lever (`adafactor`)": r"\badafactor\b|Adafactor",
    "rule (`pin-memory-without-workers`)": r"pin-memory-without-workers|pin_memory_without_workers",
    "CUDA call (`cudaStreamCreateWithPriority`)": r"\bcudaStreamCreateWithPriority\b",
}


def rust_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.glob("crates/**/*.rs")):
        if "target" not in path.relative_to(root).parts:
            yield path


def is_test(path: Path) -> bool:
    return "tests" in path.parts or path.stem == "tests" or path.stem.endswith("_tests")


def code_lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("//", "#")))


def split_tests(text: str) -> tuple[str, str]:
    """The product part of a Rust file, and the unit tests at its end."""
    at = text.find("#[cfg(test)]\nmod tests {")
    return (text, "") if at < 0 else (text[:at], text[at:])


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach one another, of two nodes or more (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def module_cycles(crate: Path) -> list[list[str]]:
    """Groups of a crate's top-level modules that depend on one another in a cycle."""
    source = crate / "src"
    graph: dict[str, set[str]] = defaultdict(set)
    for path in source.rglob("*.rs"):
        relative = path.relative_to(source)
        module = relative.parts[0].removesuffix(".rs")
        if is_test(path) or module in ("lib", "main"):
            continue
        text = split_tests(path.read_text())[0]
        text = re.sub(r"//.*", "", text)
        # `crate::{a, b::c}` names several modules at once.
        for group in re.findall(r"\bcrate::\{([^;]*)\}", text):
            depth, name = 0, ""
            for character in group + ",":
                if character == "," and depth == 0:
                    graph[module].add(name.strip().split("::")[0])
                    name = ""
                else:
                    depth += (character == "{") - (character == "}")
                    name += character
        graph[module] |= set(re.findall(r"\bcrate::([a-z_0-9]+)", text))
        depth_here = len(relative.parts) - (2 if path.stem == "mod" else 1)
        up = "super::" * (depth_here + 1)
        graph[module] |= set(re.findall(rf"(?<!super::)\b{up}([a-z_0-9]+)", text))
    for module, others in graph.items():
        others &= set(graph)
        others.discard(module)
    return strongly_connected(graph)


def count(root: Path) -> dict[str, object]:
    product = unit_tests = comments = 0
    for path in rust_files(root):
        text = path.read_text()
        own, inline = split_tests(text)
        if is_test(path.relative_to(root)):
            own, inline = "", text
        product += code_lines(own)
        unit_tests += code_lines(inline)
        comments += sum(1 for line in own.splitlines() if line.lstrip().startswith("//"))
    python = {
        name: sum(code_lines(path.read_text()) for path in root.glob(pattern))
        for name, pattern in {
            "package": "python/memfit/**/*.py",
            "tests": "tests/python/**/*.py",
            "scripts": "scripts/**/*.py",
        }.items()
    }
    crates = sorted(path.parent for path in root.glob("crates/*/Cargo.toml"))
    cycles = {crate.name: module_cycles(crate) for crate in crates}
    macros = sum(
        len(re.findall(r"^\s*macro_rules!", path.read_text(), re.MULTILINE))
        for path in rust_files(root)
        if not is_test(path.relative_to(root))
    )
    rows: dict[str, object] = {
        "Rust, product code lines": product,
        "Rust, comment lines in product files": comments,
        "Rust, test code lines": unit_tests,
        "Python package, code lines": python["package"],
        "Python tests, code lines": python["tests"],
        "Python scripts, code lines": python["scripts"],
        "crates": len(crates),
        "Rust files": sum(1 for _ in rust_files(root)),
        "Python files of the package": sum(1 for _ in root.glob("python/memfit/**/*.py")),
        "local macros (`macro_rules!`)": macros,
        "import cycles between modules of a crate": sum(len(each) for each in cycles.values()),
        "modules in such a cycle": sum(len(group) for each in cycles.values() for group in each),
    }
    searched = [*rust_files(root), *root.glob("python/memfit/**/*.py")]
    texts = [split_tests(path.read_text())[0] for path in searched if not is_test(path.relative_to(root))]
    lists = [path.read_text() for path in root.glob("crates/*/api/*.api")]
    for name, pattern in ADDITIONS.items():
        rows[f"places of a {name}"] = sum(1 for text in texts + lists if re.search(pattern, text))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("roots", nargs="*", type=Path, default=[HERE])
    parser.add_argument("--cycles", action="store_true", help="name the modules of each cycle")
    arguments = parser.parse_args()
    columns = [count(root.resolve()) for root in arguments.roots]
    print("| | " + " | ".join(root.name for root in arguments.roots) + " |")
    print("|---|" + "--:|" * len(columns))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(f"{column[name]:,}" for column in columns) + " |")
    if arguments.cycles:
        for root in arguments.roots:
            for crate in sorted(root.glob("crates/*/Cargo.toml")):
                for group in module_cycles(crate.parent):
                    print(f"{root.name}: {crate.parent.name}: {', '.join(group)}")


if __name__ == "__main__":
    main()
