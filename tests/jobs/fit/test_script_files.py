"""What a script does to the file system around its trainings is there once, through deaths.

All workers die in the second training.  The script names its folder by date and uuid, clears
its results first, adds entries to logs, and reads in a temporary folder what callbacks have
written there.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from script_jobs import train_text

from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = """
import json, os, shutil, sqlite3, tempfile, uuid
from datetime import datetime
import holdfast, keras, numpy as np

out = f"runs/{datetime.now():%Y%m%d-%H%M%S-%f}-{uuid.uuid4().hex}"
os.makedirs(out)
if os.path.exists("results"):
    shutil.rmtree("results")
os.makedirs("results")
with open("runs.csv", "a") as log:
    log.write(out + "\\n")
entries = holdfast.shared(json.load(open("runs.json")))
json.dump([*entries, out], open("runs.json", "w"))
os.makedirs("numbered", exist_ok=True)
number = holdfast.shared(len(os.listdir("numbered")) + 1)
np.save(f"numbered/run_{number}.npy", [number])
assert np.load(f"numbered/run_{number}.npy") == [number]
diary = open("diary.txt", "a")
with sqlite3.connect("runs.db") as runs:
    runs.execute("create table if not exists runs (name text primary key)")
    runs.execute("insert or replace into runs values (?)", [out])
runs.close()
x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
callbacks = keras.callbacks

def train(folder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    worst = callbacks.ModelCheckpoint(
        out + "/first.keras", monitor="loss", mode="max", save_best_only=True
    )
    best = callbacks.ModelCheckpoint(folder + "/best.keras", monitor="loss", save_best_only=True)
    notes = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, file=diary))
    model.fit(
        x, x[:, :1], batch_size=8, epochs=2, verbose=0,
        callbacks=[worst, best, callbacks.CSVLogger("results/log.csv", append=True),
                   callbacks.TensorBoard(out + "/logs"), notes],
    )
    return keras.models.load_model(folder + "/best.keras").evaluate(x, x[:, :1], verbose=0)

def train_in_folder():
    with tempfile.TemporaryDirectory() as folder:
        return train(folder)

losses = [train_in_folder() for _ in range(2)]
print("end", file=diary)
first = keras.models.load_model(out + "/first.keras")
losses.append(first.evaluate(x, x[:, :1], verbose=0))
print(json.dumps([losses, out, sorted(os.listdir(out)), open("results/log.csv").read().split()]))
"""
"""Two trainings of eight steps."""


def train(directory: Path, *faults: str) -> JobRun:
    job = train_text(SCRIPT, directory, *faults, options=("--save-every", "3"))
    assert job.exit_code == 0, job.stderr
    return job


@pytest.mark.extended  # test_script_clock.py has the names
def test_names_folders_and_results_are_those_of_the_first_launch(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old").touch()
    (tmp_path / "runs.json").write_text('["before"]')
    struck = train(tmp_path, "kill worker=0 step=15", "kill worker=1 step=15")
    again = train(tmp_path)

    found, repeated = (json.loads(job.stdout.splitlines()[-1]) for job in (struck, again))
    losses, out, files, log = found
    assert len(struck.report.relaunches) == 1
    assert "died" not in again.stderr
    assert repeated == found
    assert losses[0] != losses[2]
    assert files == ["first.keras", "logs"]
    assert [line.split(",")[0] for line in log] == ["epoch", "0", "1", "0", "1"]
    assert (tmp_path / "runs.csv").read_text() == f"{out}\n"
    assert json.loads((tmp_path / "runs.json").read_text()) == ["before", out]
    assert f"the script writes to {tmp_path / 'runs.db'} on each of the 2 workers" in struck.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as runs:
        assert runs.execute("select * from runs").fetchall() == [(out,)]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(out).name]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["log.csv"]
    assert [path.name for path in (tmp_path / "numbered").iterdir()] == ["run_1.npy"]
    assert (tmp_path / "diary.txt").read_text().split() == ["0", "1", "0", "1", "end"]
