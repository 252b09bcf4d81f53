"""Calls a function for `memfit.fits`, in a separate process. The folder has no other module."""

import os
import pickle
import sys
from multiprocessing import spawn


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        given = pickle.load(file)
    # Entries of this process stay: a module may be imported later from them.
    sys.path[:] = [*given["path"], *(entry for entry in sys.path[1:] if entry not in given["path"])]
    sys.argv[:] = given["argv"]
    os.chdir(given["folder"])
    os.environ[given["importing"]] = "1"
    spawn.prepare(given["main"])
    del os.environ[given["importing"]]
    try:
        function, args, kwargs = pickle.loads(given["call"])
    except AttributeError as error:
        raise RuntimeError(
            f"{error}: a script's function must be defined outside of `if __name__ == '__main__':`"
        ) from None
    for _ in range(given["calls"]):
        function(*args, **kwargs)


if __name__ == "__main__":
    main()
