"""The custom replica of the examples, one of whose workers does what no other one does.

``apart.py FOLDER 2 GATE`` trains twice.  The gate is between the first training of a rank and what
follows: ``0:raise`` raises, and ``1:ended 0`` waits for that file in the folder, which rank 0 makes
at the end of its script.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

from examples import load
from holdfast import Trainer

folder, rank = Path(sys.argv[1]), int(os.environ["OMPI_COMM_WORLD_RANK"])
victim, _, gate = sys.argv[3].partition(":")


example = load("02_custom_replica")
for number in range(int(sys.argv[2])):
    Trainer(
        lambda: example.SoftmaxRegression(2, 10),
        example.clusters(16, 2, 10),
        global_batch=8,
        epochs=1,
    ).run()
    if number == 0 and rank == int(victim):
        if gate == "raise":
            raise OSError("no space left for the weights")
        while not (folder / gate).exists():
            time.sleep(0.01)
atexit.register((folder / f"ended {rank}").touch)
