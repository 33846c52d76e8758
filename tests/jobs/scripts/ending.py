"""The custom replica of the examples, whose script leaves work for its end.

``ending.py FOLDER then``: a thread and an executor write files into the folder when the script has
come to its end, also by an error (``raise``).  With ``hang`` a thread never ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples import load
from holdfast import Trainer

folder, then = Path(sys.argv[1]), sys.argv[2]
rank = os.environ["OMPI_COMM_WORLD_RANK"]


def write() -> None:
    threading.main_thread().join()  # to the end of the script
    (folder / f"thread {rank}").touch()


def poll() -> None:
    (folder / f"polls {rank}").touch()
    threading.Event().wait()


example = load("02_custom_replica")
Trainer(
    lambda: example.SoftmaxRegression(2, 10), example.clusters(16, 2, 10), global_batch=8, epochs=1
).run()
atexit.register((folder / f"atexit {rank}").touch)
threading.Thread(target=write).start()
ThreadPoolExecutor(1).submit((folder / f"executor {rank}").touch)
left_open = (folder / f"open {rank}").open("w")
left_open.write("written")
if then == "hang":
    threading.Thread(target=poll, name="poller").start()
if then == "raise":
    raise OSError("no space left")
