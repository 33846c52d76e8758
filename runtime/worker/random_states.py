"""The states of the global generators of random numbers, as a JSON object.

They are those of Python, of NumPy and of Keras, and the counts of what lines of the script have
drawn without a seed.  A training may draw from them, in its
callbacks.  If it is complete and a relaunch passes it over, nothing is drawn again.  So the
checkpoint of its end holds what it has left behind.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.runtime.worker.script_draws import script_draws

_KERAS_STATE = "keras.src.backend.common.global_state"
_KERAS_SEEDS = "keras.src.random.seed_generator"
_KERAS_NAME = "global_seed_generator"


def random_states() -> dict[str, Any]:
    """Return the states of all global generators."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    kind, inner = str(legacy["bit_generator"]), legacy["state"]
    states: dict[str, Any] = {"python": [version, list(words), gauss]}
    if kind == "MT19937":  # a script may set another one
        key = [int(word) for word in inner["key"]]
        states["numpy"] = [key, int(inner["pos"]), int(legacy["has_gauss"]), float(legacy["gauss"])]
    generator = _keras_generator()
    if generator is not None:
        states["keras"] = [int(word) for word in np.asarray(generator.state)]
    draws = script_draws()
    if draws is not None and draws.counts:
        states["script"] = draws.counts
    return states


def go_on_from(states: Mapping[str, Any]) -> None:
    """Give the global generators the states that ``random_states`` has returned."""
    if "keras" in states and _KERAS_SEEDS in sys.modules:
        # First: to make this generator draws from Python's.
        sys.modules[_KERAS_SEEDS].global_seed_generator().state.assign(states["keras"])
    if "numpy" in states:
        key, position, has_gauss, gauss = states["numpy"]
        np.random.set_state(("MT19937", np.array(key, np.uint32), position, has_gauss, gauss))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    draws = script_draws()
    if draws is not None:
        draws.go_on_from(states.get("script", {}))


def _keras_generator() -> Any:
    """Return Keras's own generator, None before anybody has drawn from it."""
    state = sys.modules.get(_KERAS_STATE)
    return None if state is None else state.get_global_attribute(_KERAS_NAME)
