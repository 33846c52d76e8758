"""What a script writes with Keras or TensorFlow is there for all workers, by any way to read it.

Between two trainings the first worker is the slower one, then the other one is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from script_jobs import train_text

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = """
import os, time, zipfile
import holdfast, keras, numpy as np, tensorflow as tf

x = np.random.default_rng(8).normal(size=(32, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile("sgd", "mse")

def write_and_read():
    model.export("serving/1", verbose=False)
    loaded = tf.saved_model.load("serving/1")
    served = loaded.serve(tf.constant(x)).numpy()
    assert np.allclose(served, model.predict(x, verbose=0), atol=1e-5)
    assert os.listdir("serving/1/variables") and keras.layers.TFSMLayer("serving/1")(x) is not None
    tf.saved_model.save(model, "plain")
    tf.saved_model.load("plain")
    model.save("model.keras")
    assert zipfile.ZipFile("model.keras").testzip() is None
    assert np.allclose(keras.models.load_model("model.keras").predict(x, verbose=0), served)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "kept", max_to_keep=1)
    for number in range(3):
        path = manager.save()
        assert path == manager.latest_checkpoint and path.endswith(f"-{number + 1}")
        manager.checkpoint.restore(path).expect_partial()
    assert tf.train.latest_checkpoint("kept") == path
    os.system("test -s model.keras") == 0 or os.abort()

for waits in (holdfast.is_first(), not holdfast.is_first()):
    model.fit(x, x[:, :3], batch_size=16, verbose=0, shuffle=False)
    time.sleep(1.5 * waits)
    write_and_read()
model.fit(x, x[:, :3], batch_size=16, verbose=0, shuffle=False)
print("kept", sorted(os.listdir("kept")))
"""


@pytest.mark.extended  # tests/runtime/keras has the files of scripts
def test_libraries_find_what_the_script_has_written_on_each_worker(tmp_path: Path) -> None:
    job = train_text(SCRIPT, tmp_path)

    assert job.exit_code == 0, job.stderr
    assert job.report.failures == ()
    assert "kept ['checkpoint', 'ckpt-3.data-00000-of-00001', 'ckpt-3.index']" in job.stdout
