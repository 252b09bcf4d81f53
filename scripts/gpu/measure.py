"""Run a script to its end, and write what PyTorch counted on each card: measure.py FILE SCRIPT ARGUMENTS…"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main() -> None:
    target, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        import torch

        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        counted = {
            "allocated": stats["allocated_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.peak"],
            "requested": stats["requested_bytes.all.peak"],
            "outside": total - free - stats["reserved_bytes.all.current"],
            "card": torch.cuda.get_device_name(),
            "capacity": total,
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
        }
        Path(target).write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
