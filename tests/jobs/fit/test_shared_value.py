"""A value that the script shares is one for all workers, and its files outlive their writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_jobs import train_text

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = """
import os, time
import h5py, holdfast, keras, numpy as np

began = holdfast.shared(time.time())
with open(f"{os.getpid()}.value", "w") as file:
    file.write(str(began))
with open("log.txt", "a") as file:
    file.write(f"{time.time()}\\n")
x = np.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x, batch_size=2, epochs=1, verbose=0)
np.savetxt("weights.txt", model.get_weights()[0])
with h5py.File("weights.h5", "w") as file:
    file["kernel"] = model.get_weights()[0]
with h5py.File("weights.h5") as file:
    assert file["kernel"][()] == np.loadtxt("weights.txt", "float32")
"""


def test_value_is_that_of_the_first_launch_on_all_workers(tmp_path: Path) -> None:
    job = train_text(SCRIPT, tmp_path, "kill worker=1 step=3", options=("--no-shrink",))

    assert job.exit_code == 0, job.stderr
    assert len(job.report.relaunches) == 1
    values = [path.read_text() for path in tmp_path.glob("*.value")]
    assert len(values) == 4
    assert len(set(values)) == 1
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 1
    assert len((tmp_path / "weights.txt").read_text().splitlines()) == 1
    assert (tmp_path / "weights.h5").stat().st_size > 0


DYING = """
import os, signal
import holdfast, keras, numpy as np

x = np.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x, batch_size=2, epochs=1, verbose=0)
with open("result.txt", "w") as file:
    file.write("half ")
    file.flush()
    if holdfast.is_first() and not os.path.exists("died"):
        open("died", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    file.write("whole")
"""


@pytest.mark.extended  # tests/runtime/script has files in one process
def test_file_is_whole_if_its_first_writer_dies_after_the_training(tmp_path: Path) -> None:
    job = train_text(DYING, tmp_path)

    assert job.exit_code == 0, job.stderr
    assert len(job.report.failures) == 1
    assert (tmp_path / "result.txt").read_text() == "half whole"
    assert {path.name for path in tmp_path.iterdir()} == {"died", "result.txt", "run", "train.py"}
