"""The custom replica of the examples, all of whose checkpoints are kept."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from holdfast import Trainer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "02_custom_replica.py"
SPEC = importlib.util.spec_from_file_location("example", EXAMPLE)
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

parser = argparse.ArgumentParser()
for name in ("samples", "global-batch", "epochs", "save-every", "features"):
    parser.add_argument(f"--{name}", type=int, required=True)
options = parser.parse_args()

Trainer(
    lambda: example.SoftmaxRegression(options.features, 10),
    example.clusters(options.samples, options.features, 10),
    global_batch=options.global_batch,
    epochs=options.epochs,
    validation=example.clusters(100, options.features, 10),
    save_every=options.save_every,
    keep_every=options.save_every,
).run()
