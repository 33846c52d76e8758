"""The custom replica of the examples, whose first worker writes a result when it has trained.

``die`` kills the first worker that is about to write; ``raise`` has its script raise.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

from holdfast import Trainer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "02_custom_replica.py"
SPEC = importlib.util.spec_from_file_location("example", EXAMPLE)
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

mistake, place = sys.argv[1], Path(sys.argv[2])
result = Trainer(
    lambda: example.SoftmaxRegression(8, 10),
    example.clusters(80, 8, 10),
    global_batch=40,
    epochs=2,
).run()
if result.is_first:
    if mistake == "die" and not place.with_suffix(".tried").exists():
        place.with_suffix(".tried").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if mistake == "raise":
        raise OSError("no space left for the model")
    place.write_text(result.sha256)
