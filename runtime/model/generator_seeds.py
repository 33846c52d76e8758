"""Seeds of a model's random generators, derived for one microbatch.

Dropout and augmentation must draw the same numbers whoever computes a
microbatch, so each generator's state is a pure function of the microbatch's
seed and the generator's place in the model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.recovery.splitmix import chain


def generator_seeds(seed: int, generators: int) -> npt.NDArray[np.int64]:
    """Return states of shape ``(generators, 2)``, each number in ``[0, 2**31)``.

    TensorFlow draws with both numbers of a state; Keras counts the second one
    up at each draw.  31 bits keep them valid as int32 and as uint32.
    """
    words = [chain(seed, index) for index in range(generators)]
    pairs = [(word >> 33, (word >> 1) & 0x7FFFFFFF) for word in words]
    return np.array(pairs, dtype=np.int64).reshape(generators, 2)
