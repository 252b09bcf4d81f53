"""Run the tests of the integrations with the newest and the oldest supported releases of the trainers.

    python scripts/integrations.py [--only newest|oldest]

Each has its own environment next to .venv, from requirements/integrations*.txt, and uses the memfit that is
installed in .venv.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = {"newest": "integrations.txt", "oldest": "integrations-oldest.txt"}
TESTS = [
    f"tests/python/test_integrations{name}.py"
    for name in ("", "_lightning", "_accelerate", "_trl", "_card", "_docs")
]


def environment(name: str) -> Path:
    """Install an environment, and return its interpreter."""
    place = ROOT / f".venv-integrations-{name}"
    uv = Path(sys.executable).with_name("uv")
    python = place / "bin/python"
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, place], check=True)
    requirements = ROOT / "requirements" / REQUIREMENTS[name]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "-r", requirements], check=True)
    return python


def installed(folder: Path) -> Path:
    """Return a folder with nothing but the memfit that this interpreter imports."""
    spec = find_spec("memfit")
    if spec is None or spec.origin is None:
        raise SystemExit("memfit is not installed here: run `make integrations`")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "memfit"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(spec.origin).parent)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(REQUIREMENTS))
    chosen = parser.parse_args().only
    failed = []
    for name in REQUIREMENTS if chosen is None else [chosen]:
        python = environment(name)
        env = {
            **os.environ,
            "MEMFIT_INTEGRATIONS": "1",
            "MEMFIT_COMMAND": str(Path(sys.executable).with_name("memfit")),
            "PYTHONPATH": str(installed(ROOT / ".venv-integrations")),
        }
        print(f"== {name}", flush=True)
        done = subprocess.run([python, "-m", "pytest", "-q", *TESTS], env=env, cwd=ROOT, check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed with the {' and the '.join(failed)} releases", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
