"""Makes the small file in the form of an export of Nsight Systems that the tests read: `python make_nsight.py
nsight.sqlite`.

Table and column names, and the codes in them, are those of the exports' documented schema; nothing is copied
from one.
"""

import sqlite3
import sys
from pathlib import Path

PID = 4711
GLOBAL_PID = (1 << 48) | (PID << 24)


def main(path: str) -> None:
    Path(path).unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA page_size = 512")
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER)")
    database.execute(
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER,"
        " contextId INTEGER, address INTEGER, pc INTEGER, bytes INTEGER NOT NULL, memKind INTEGER,"
        " memoryOperationType INTEGER, name TEXT)"
    )
    database.execute(
        'CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,'
        " text TEXT, globalTid INTEGER, textId INTEGER)"
    )
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA L4', 23609475072)")
    long = "a name that goes on " * 80
    database.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(5, "step 1"), (6, long), (7, "Optimizer.step#SGD.step")]
    )
    usages = []
    for index in range(60):
        address = 0x7F0000000000 + index * (2 << 20)
        usages.append((1_000_000 + index * 1000, GLOBAL_PID, 0, 1, address, 0, 2 << 20, 2, 0, None))
        if index % 3 == 0:
            usages.append((1_000_500 + index * 1000, GLOBAL_PID, 0, 1, address, 0, 2 << 20, 2, 1, None))
    # Pinned memory is not the device's, and a block from before the recording began is only given back.
    usages.append((1_000_001, GLOBAL_PID, 0, 1, 64, 0, 4096, 1, 0, None))
    usages.append((1_000_002, GLOBAL_PID, 0, 1, 128, 0, 512, 2, 1, None))
    database.executemany("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,?,?,?,?,?,?,?,?,?)", usages)
    tid = GLOBAL_PID | 99
    database.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?)",
        [
            (1_000_000, 1_020_000, 59, None, None, tid, 5),
            (1_021_000, 1_022_000, 59, None, None, tid, 7),
            (1_030_000, 1_031_000, 59, None, None, tid, 6),
            (1_040_000, None, 34, None, "a mark", tid, None),
            (1_050_000, None, 60, None, "open", tid, None),
        ],
    )
    database.commit()
    database.execute("VACUUM")
    database.close()


if __name__ == "__main__":
    main(sys.argv[1])
