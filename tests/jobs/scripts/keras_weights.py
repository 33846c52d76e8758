"""Write weights into a folder as Keras saves them, and those of another model.

None in ``w.weights.h5`` is what a model is built with; ``other.weights.h5`` belongs to no model
of these tests.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from everything_keras import model


def main() -> None:
    folder, random = Path(sys.argv[1]), np.random.default_rng(11)
    network = model()
    network.build((None, 8, 8, 1))
    built = network.get_weights()
    network.set_weights([array + random.uniform(0.01, 0.1, array.shape) for array in built])
    network.save_weights(folder / "w.weights.h5")
    other = keras.Sequential([keras.layers.Dense(3)])
    other.build((None, 5))
    other.save_weights(folder / "other.weights.h5")


if __name__ == "__main__":
    main()
