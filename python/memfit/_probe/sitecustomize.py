"""Installed by `memfit run`: activates the probe, then runs the `sitecustomize` that it shadows."""

import os
import sys


def _arm():
    if not os.environ.get("MEMFIT_RUN_DIR") or sys.version_info < (3, 10):
        return
    try:
        import memfit_probe

        memfit_probe.start()
    except Exception as error:  # The script must run, watched or not.
        sys.stderr.write(f"memfit: this process is not watched: {type(error).__name__}: {error}\n")


def _give_way():
    """Run the `sitecustomize` that Python would have run in place of this module."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_give_way()
