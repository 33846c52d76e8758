"""The custom replica of the examples, whose workers train different numbers of times.

``apart.py FOLDER 1 2`` trains once on rank 0, and twice on rank 1.  The other arguments are
gates between the first training of a rank and what follows: ``1:stop`` waits for the order
to stop, ``2:die`` dies, in the first launch only, ``0:raise`` raises, and ``1:ended 0`` waits
for that file in the folder, which rank 0 makes at the end of its script.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from pathlib import Path

from examples import load
from holdfast import Trainer
from holdfast.runtime.system.worker_status import RequestFlag
from holdfast.runtime.training.stages import stages_of_script

folder, rank = Path(sys.argv[1]), int(os.environ["OMPI_COMM_WORLD_RANK"])
own = [text.partition(":")[2] for text in sys.argv[2:] if text.startswith(f"{rank}:")]
counts = [int(text) for text in sys.argv[2:] if ":" not in text]


def pass_gates() -> None:
    page = stages_of_script().context.page
    if "die" in own and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while "stop" in own and RequestFlag.STOP not in page.requests:
        time.sleep(0.01)
    for gate in set(own) - {"die", "raise", "stop"}:
        while not (folder / gate).exists():
            time.sleep(0.01)
    if "raise" in own:
        raise OSError("no space left for the weights")


example = load("02_custom_replica")
for number in range(counts[rank]):
    Trainer(
        lambda: example.SoftmaxRegression(2, 10),
        example.clusters(16, 2, 10),
        global_batch=8,
        epochs=1,
    ).run()
    if number == 0:
        pass_gates()
atexit.register((folder / f"ended {rank}").touch)
