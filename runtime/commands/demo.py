"""``holdfast demo``: a training whose workers all die has the bytes of an undisturbed one.

A small network learns to read digits with 4 workers.  Workers 0 and 2 are killed on the way, then
the other two at once.  The job goes on by itself: first in place, then from its checkpoint.  The
same training with 1 worker, undisturbed, must end with the same bytes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from holdfast.runtime.commands.command import Documented
from holdfast.runtime.commands.launch import launch
from holdfast.runtime.commands.report import report
from holdfast.runtime.commands.reported_run import read_reported_run
from holdfast.runtime.commands.summary import Report
from holdfast.runtime.errors import ExitCode

_SCRIPT = """\
# A Keras script with no holdfast in it: a small network learns to read digits that are drawn here.
import keras
import numpy as np

# Five rows of three points for each digit: 7 is three points, 5 the outer two, 1 the last one.
GLYPHS = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717".split()
points = np.array([[[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in g] for g in GLYPHS])

random = np.random.default_rng(0)
labels = random.integers(10, size=1536)
images = random.normal(scale=0.3, size=(1536, 8, 8, 1)).astype("float32")
for image, label in zip(images, labels):
    top, left = random.integers(3, size=2)
    image[top : top + 5, left : left + 3, 0] += 2 * points[label]

layers = keras.layers
model = keras.Sequential([
    layers.Conv2D(16, 3, activation="relu"), layers.BatchNormalization(momentum=0.9),
    layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.2),
    layers.Dense(64, activation="relu"), layers.Dense(10),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(5e-3), loss=loss, metrics=["accuracy"])
model.fit(images, labels, batch_size=128, epochs=12, validation_split=1 / 6)
"""
_FAULTS = (
    "kill worker=0 step=30 site=reduce",
    "kill worker=2 step=60 site=compute",
    "kill worker=1 step=90 site=compute",
    "kill worker=3 step=90 site=compute",
)
_BEGIN = """\
A small network learns to read digits with 4 workers, and all 4 are killed on the
way. Then 1 worker learns the same, undisturbed. Both must end with the same bytes.
This takes a minute or two.
"""


@click.command(cls=Documented, examples=("demo", "demo --keep"))
@click.option("--keep", is_flag=True, help="Leave the script and both runs, and say where.")
@click.pass_context
def demo(context: click.Context, /, *, keep: bool) -> None:
    """Kill all workers of a training on its way, and compare its final bytes with undisturbed ones.

    Exits with 0 if they are the same, with 1 if not.
    """
    click.echo(_BEGIN)
    place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        disturbed = _train(place, "disturbed", 4, _FAULTS)
        click.echo("\nThe same with 1 worker, undisturbed:\n")
        undisturbed = _train(place, "undisturbed", 1)
        click.echo("\nThe run whose workers have died, by `holdfast report`:\n")
        context.invoke(report, run_dir=place / "disturbed", as_json=False, page=None)
    finally:
        if keep:
            click.echo(f"\nThe script and both runs are in {place}.")
        else:
            shutil.rmtree(place, ignore_errors=True)
    click.echo("\nsha256 of the final state")
    click.echo(f"  4 workers, all killed  {disturbed.final_sha256}")
    click.echo(f"  1 worker, undisturbed  {undisturbed.final_sha256}")
    broken = _broken_promises(disturbed, undisturbed)
    for sentence in broken:
        click.echo(f"not so: {sentence}")
    if broken:
        context.exit(ExitCode.PROGRAM_FAILED)
    click.echo("4 of 4 workers died, and the bytes are the same.")


def _train(place: Path, name: str, workers: int, faults: tuple[str, ...] = ()) -> Report:
    """Train in the run directory ``name`` of ``place`` to the end, and return the report.

    Raises:
        LaunchFailed: the job has failed.
    """
    script, run_dir = place / "digits.py", place / name
    script.write_text(_SCRIPT, encoding="utf-8")
    # The faults name workers of the first launch, so none with new ones may come before.
    same = {"microbatches": 4, "threads": 1, "seed": 2016, "save_every": 50, "regrow": "never"}
    launch(script, n=workers, run_dir=run_dir, inject=faults, **same)
    return read_reported_run(run_dir).report


def _broken_promises(disturbed: Report, undisturbed: Report) -> list[str]:
    """Return a sentence for each promise that was not kept."""
    died = sorted(failure.worker for failure in disturbed.failures)
    in_place = sorted(lost for recovery in disturbed.recoveries for lost in recovery.lost)
    sizes = [len(relaunch.workers) for relaunch in disturbed.relaunches]
    epochs = (*disturbed.epochs, *undisturbed.epochs)
    checks = {
        f"both jobs end well ({disturbed.reason}; {undisturbed.reason})": (
            disturbed.exit_code == undisturbed.exit_code == 0
        ),
        f"workers 0 to 3 died, and no other worker (died: {died})": died == [0, 1, 2, 3],
        f"workers 0 and 2 were survived in place ({in_place})": in_place == [0, 2],
        f"one relaunch, on all 4 workers ({sizes})": sizes == [4],
        "the undisturbed run was undisturbed": not undisturbed.failures,
        "12 epochs used each sample once": [epoch.exact for epoch in epochs] == [True] * 24,
        "the final bytes are equal": disturbed.final_sha256 == undisturbed.final_sha256,
    }
    return [sentence for sentence, holds in checks.items() if not holds]
