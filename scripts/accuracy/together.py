"""Runs several cases one after the other in one process, for which torch is imported once.

python together.py FILE

FILE is JSON: a list of cases, each with its key, script, arguments and folder. What a case prints follows a
line that names it. Each begins with an empty cache and with torch's defaults.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
from measured import MARK


def main() -> None:
    path = list(sys.path)
    for case in json.loads(Path(sys.argv[1]).read_text()):
        print(f"\n{MARK}{case['key']}", flush=True)
        os.chdir(case["folder"])
        known = set(sys.modules)
        sys.path[:] = [str(Path(case["script"]).parent), *path[1:]]
        sys.argv = [case["script"], *case["arguments"]]
        try:
            runpy.run_path(case["script"], run_name="__main__")
        except Exception:
            traceback.print_exc()
        # Modules of a repository have common names, such as `models`.
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(case["folder"]):
                del sys.modules[name]
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
