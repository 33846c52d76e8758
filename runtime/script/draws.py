"""What a script draws without a seed: alike on all workers, and in all launches of a run.

Every worker runs the whole script.  The numbers come from the run's record, so that all workers
build the same step.  Each line of the script has a sequence of its own.  So a line that one
worker alone runs moves no other line's numbers.

Generators that a library makes for the script are alike, too.  Its names and tokens stay its
own, and so does all that holdfast draws: two workers must not write one temporary file.

A script may hand the functions of Python that are exchanged for this on as it hands on Python's
own: to another process, which knows them by module and name, or to a class, which makes no methods
of functions that are written in C.

A training may draw, too, in its callbacks.  If it is complete and a relaunch passes it over,
nothing is drawn again.  So the checkpoint of its end holds the states of the global generators: of
Python, of NumPy and of Keras, and how often each line of the script has drawn.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from holdfast.runtime.run.program import is_holdfasts
from holdfast.runtime.script.calls import CallingScript, exchange

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"
_NAME_LENGTH = 8
_SEED_BYTES = 32
_GENERATOR_BITS = 63
_NUMPY_SEEDS = 1 << 32
_PACKAGES = ("/site-packages/", "/dist-packages/")
_KERAS_STATE = "keras.src.backend.common.global_state"
_KERAS_SEEDS = "keras.src.random.seed_generator"
_KERAS_NAME = "global_seed_generator"

_draws: ScriptDraws | None = None


def seed_script(seed: int, draw_seed: str, script: Path) -> None:
    """Give a script its random numbers; ``draw_seed`` is that of generators without a seed."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    draw_alike(draw_seed, script)


def draw_alike(seed: str, script: Path) -> ScriptDraws:
    """Let the script of this process draw from ``seed`` wherever it gives none itself."""
    global _draws  # noqa: PLW0603  (one process runs one script)
    _draws = draws = ScriptDraws(seed, script)
    _exchange_bytes(draws)
    _exchange_seeds(draws)
    _exchange_names(draws)
    os.register_at_fork(before=draws.forks, after_in_child=draws.was_forked)
    return draws


class ScriptDraws:
    """The draws of one process that runs a script."""

    def __init__(self, seed: str, script: Path) -> None:
        self._seed = seed
        self._calls = CallingScript(script)
        self._counts: Counter[str] = Counter()
        self._forks = 0
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[str, int]:
        """How often each line has drawn."""
        with self._lock:
            return dict(self._counts)

    def go_on_from(self, counts: Mapping[str, int]) -> None:
        """Go on behind draws that another launch has made."""
        with self._lock:
            self._counts |= Counter(counts)  # the larger count of each

    def take(self, size: int, *, through_libraries: bool) -> bytes | None:
        """Return the next bytes of the script's line that draws, None if another one draws.

        ``through_libraries`` is whether a library may draw them for the script.
        """
        place = self._place(sys._getframe(1), through_libraries=through_libraries)
        if place is None:
            return None
        with self._lock:
            number = self._counts[place]
            self._counts[place] = number + 1
        return hashlib.shake_256(f"{self._seed}\0{place}\0{number}".encode()).digest(size)

    def forks(self) -> None:
        """Hear that this process makes a copy of itself."""
        self._forks += 1

    def was_forked(self) -> None:
        """Draw other numbers than the process that this one is a copy of."""
        self._lock = threading.Lock()
        self._seed = f"{self._seed}\0{self._forks}"
        self._counts.clear()
        self._forks = 0

    def _place(self, frame: FrameType | None, *, through_libraries: bool) -> str | None:
        """Return the line that draws, in the words of the script: it may move in its file."""
        while frame is not None and not self._calls.owns(frame.f_code):
            file = frame.f_code.co_filename
            is_library = any(mark in file for mark in _PACKAGES)
            # In a checkout the folder of holdfast holds the libraries, too.
            is_ours = file != __file__ and not is_library and is_holdfasts(file)
            if is_ours or (is_library and not through_libraries):
                return None
            frame = frame.f_back
        return None if frame is None else self._calls.words_of(frame)


def _exchange_bytes(draws: ScriptDraws) -> None:
    """Exchange the operating system's random bytes: what ``secrets`` and ``uuid`` draw from."""
    plain = os.urandom

    def urandom(size: int, /) -> bytes:
        drawn = draws.take(size, through_libraries=False)
        return plain(size) if drawn is None else drawn

    exchange(os, "urandom", urandom)
    random._urandom = os.urandom  # type: ignore[attr-defined]  # of SystemRandom


def _exchange_seeds(draws: ScriptDraws) -> None:
    """Exchange the seeds of generators that are made without one: Python's and NumPy's."""
    plain = random.Random.seed

    @functools.wraps(plain)
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain(self, _seed(draws, 8 * _SEED_BYTES) if a is None else a, version)

    def randbits(count: int) -> int:
        drawn = _seed(draws, count)
        return rest.getrandbits(count) if drawn is None else drawn

    rest = random.SystemRandom()
    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = random._inst.seed
    numpys: Any = np.random.bit_generator
    numpys.randbits = randbits


def exchange_generator(kind: Any) -> None:
    """Exchange the seed of a ``tf.random.Generator`` that is made without one."""
    plain = kind.from_non_deterministic_state

    def made(_: Any, alg: Any = None) -> Any:
        drawn = None if _draws is None else _seed(_draws, _GENERATOR_BITS)
        return plain(alg) if drawn is None else kind.from_seed(drawn, alg=alg)

    kind.from_non_deterministic_state = classmethod(made)


def _seed(draws: ScriptDraws, bits: int) -> int | None:
    drawn = draws.take(-(-bits // 8), through_libraries=True)
    return None if drawn is None else int.from_bytes(drawn, "big") >> (-bits % 8)


def _exchange_names(draws: ScriptDraws) -> None:
    """Exchange the names of temporary files and folders.

    Those of libraries are drawn anew for each, because a generator may be made for the script.
    """
    rest = random.SystemRandom()

    def name(_: object) -> str:
        drawn = draws.take(_SEED_BYTES, through_libraries=False)
        source = rest if drawn is None else random.Random(drawn)
        return "".join(source.choices(_NAME_CHARACTERS, k=_NAME_LENGTH))

    names: Any = tempfile._RandomNameSequence  # type: ignore[attr-defined]
    names.__next__ = name


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
    if _draws is not None and _draws.counts:
        states["script"] = _draws.counts
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
    if _draws is not None:
        _draws.go_on_from(states.get("script", {}))


def _keras_generator() -> Any:
    """Return Keras's own generator, None before anybody has drawn from it."""
    state = sys.modules.get(_KERAS_STATE)
    return None if state is None else state.get_global_attribute(_KERAS_NAME)
