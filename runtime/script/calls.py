"""Which calls are the script's own, and the values and numbers of them that a run keeps.

Every worker runs the whole script, and so does each launch.  What the first process of a run reads
at a line of the script is written into the run's record, and all others get it (`ScriptRecord`):

* *names by date*: what ``time.strftime`` makes of the present time for a line of the script,
  outside of trainings.  Python's dates call it, too: for ``datetime.now().strftime(...)`` and in
  texts such as ``f"{datetime.now():%Y%m%d}"``.  A format with a colon is taken for a time that is
  shown.  All else that reads the clock gets the clock, so measures are right;
* whatever the script gives to ``holdfast.shared``.

What it *draws* without a seed comes from the run's record, too, so that all workers build the same
step.  Each line of the script has a sequence of its own.  So a line that one worker alone runs
moves no other line's numbers.  Generators that a library makes for the script are alike, too.  Its
names and tokens stay its own, and so does all that holdfast draws: two workers must not write one
temporary file.

A script may hand the functions of Python that are exchanged for this on as it hands on Python's
own: to another process, which knows them by module and name, or to a class, which makes no methods
of functions that are written in C.

A training may draw, too, in its callbacks.  If it is complete and a relaunch passes it over,
nothing is drawn again.  So the checkpoint of its end holds the states of the global generators: of
Python, of NumPy and of Keras, and how often each line of the script has drawn.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import hashlib
import json
import linecache
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.program import is_holdfasts, is_users
from holdfast.runtime.run.script_record import ScriptRecord

_ON_BEHALF = frozenset({
    *("bz2", "contextlib", "gzip", "logging", "lzma", "os", "pathlib", "shutil", "tempfile"),
    *("weakref", "zipfile"),
    *("PIL", "imageio", "joblib", "matplotlib", "numpy", "pandas", "scipy"),
})  # fmt: skip
"""Packages that change files for their callers, where these say so."""
_OURS = __name__.rpartition(".")[0]

_DIGITS = re.compile(r"\d+")
_DAY_S = 86_400
_SLACK_S = 2
"""Dates are cut to seconds."""

_MOST_NAMES = 100
"""A line that makes so many makes no names."""

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"
_NAME_LENGTH = 8
_SEED_BYTES = 32
_GENERATOR_BITS = 63
_NUMPY_SEEDS = 1 << 32
_PACKAGES = ("/site-packages/", "/dist-packages/")
_KERAS_STATE = "keras.src.backend.common.global_state"
_KERAS_SEEDS = "keras.src.random.seed_generator"
_KERAS_NAME = "global_seed_generator"

_Value = TypeVar("_Value")
_trainings = 0
_draws: ScriptDraws | None = None


def exchange(module: Any, name: str, function: Callable[..., Any]) -> None:
    """Let calls of a module's function call ``function``, without another frame in between."""
    made = functools.update_wrapper(_Exchanged(function), getattr(module, name))
    made.__module__ = module.__name__  # posix.getpid stays as it was
    setattr(module, name, made)


def stand_in(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Let calls of ``owner.name`` call ``method``; it gets first what has stood there."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def standing(*arguments: Any, **by: Any) -> Any:
        return method(plain, *arguments, **by)

    setattr(owner, name, standing)


class _Exchanged(functools.partial[Any]):
    """A call in the place of a function; pickled by the function's name, as that one was."""

    def __reduce__(self) -> Any:
        return self.__name__  # type: ignore[attr-defined]

    def __get__(self, instance: object, owner: type | None = None) -> _Exchanged:
        return self


def share_names(record: ScriptRecord, script: CallingScript) -> None:
    """Let the script of this process name by the first date that the run has read."""
    began, counts = time.time(), Counter[str]()

    def strftime(plain: Any, form: str, *moment: Any) -> str:
        text: str = plain(form, *moment)
        frame = sys._getframe(1)
        is_scripts = script.is_here() and script.owns(frame.f_code)
        if not is_scripts or ":" in form or not _is_present(began, *moment):
            return text
        # Dates have put microseconds into the format.
        key = f"name {_DIGITS.sub('', form)} in {script.place(frame.f_code)}"
        counts[key] += 1
        number = counts[key]
        return text if number > _MOST_NAMES else str(record.first(f"{key} {number}", text))

    exchange(time, "strftime", functools.partial(strftime, time.strftime))


def _is_present(began: float, moment: Any = None) -> bool:
    """Return whether a moment, here or at Greenwich, was read since ``began``; a day counts."""
    if moment is None:
        return True
    since = began - (_SLACK_S if any(moment[3:6]) else _DAY_S)
    with contextlib.suppress(OverflowError):
        read = calendar.timegm(moment), time.mktime(moment)
        return any(since <= found <= time.time() + _SLACK_S for found in read)
    return False


class CallingScript:
    """Knows the script of this process by its frames.

    A process that the script has forked is none: it goes its own way.
    """

    def __init__(self, script: Path) -> None:
        self._script = str(script)
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._owns = functools.lru_cache(maxsize=4096)(
            lambda file: file == self._script or is_users(file)
        )
        self.training = 0
        """The number of the last training that the script has come to."""

    @property
    def moment(self) -> float:
        """How far the script is: a whole number is behind a training, one between is in it."""
        return self.training - 0.5 * is_in_training()

    @property
    def is_forked(self) -> bool:
        """Whether the script has forked this process."""
        return os.getpid() != self._process

    def owns(self, code: CodeType) -> bool:
        """Return whether code is the script's, or that of a module beside it."""
        return self._owns(code.co_filename)

    def place(self, code: CodeType) -> str:
        """Return the function that some code is, and its file."""
        return f"{Path(code.co_filename).name} {code.co_name}"

    def line_behind(self, frame: FrameType | None) -> str | None:
        """Return the script's line that calls, itself or through a package that writes files.

        None if another library calls, and in a training or another thread.  The line is given in
        its words, because it may move in its file.
        """
        if not self.is_here():
            return None
        while frame is not None and _is_on_behalf(frame.f_globals.get("__name__") or ""):
            frame = frame.f_back
        return None if frame is None or not self.owns(frame.f_code) else self.words_of(frame)

    def words_of(self, frame: FrameType) -> str:
        """Return the line that a frame of the script has come to, in its words."""
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{self.place(frame.f_code)}: {text}"

    def is_here(self) -> bool:
        """Return whether this is the main thread of the script, outside of trainings."""
        return threading.get_ident() == self._thread and not self.is_forked and not _trainings


def _is_on_behalf(module: str) -> bool:
    is_mapped = module.endswith(".memmap")  # NumPy's, which is written after it is closed
    return (module.partition(".")[0] in _ON_BEHALF and not is_mapped) or module.startswith(_OURS)


_sharing: Callable[[FrameType, Any], Any] | None = None


def share_values(record: ScriptRecord, script: CallingScript) -> None:
    """Let `shared` return what stands in the run's record from now on."""
    global _sharing  # noqa: PLW0603  (one process runs one script)
    counts: Counter[str] = Counter()

    def first(frame: FrameType, value: Any) -> Any:
        line = script.line_behind(frame)
        if line is None:
            raise UsageError(
                "holdfast.shared(...) is for the script's own lines outside of fit(), in its main "
                "thread: call it before, and let callbacks use what it has returned"
            )
        counts[line] += 1
        return record.first(f"shared {counts[line]} of {line}", {"is": value})["is"]

    _sharing = first


def shared(value: _Value) -> _Value:
    """Return one value for all workers, which stays the same through all relaunches of the run.

    It is the ``value`` of the worker that comes to this line first: a number of a folder, a time,
    what a file holds.  It consists of None, booleans, numbers, texts, lists and dictionaries with
    texts as keys.  Without ``holdfast run`` it is the script's own.

    Raises:
        UsageError: the value is none of these, or a training is under way.
    """
    try:
        is_plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        is_plain = False
    if not is_plain:
        raise UsageError(
            f"holdfast.shared({type(value).__name__}) cannot be kept: give it None, booleans, "
            "finite numbers, texts, or lists and dictionaries of these, with texts as keys"
        )
    if _sharing is None:
        return value
    found: _Value = _sharing(sys._getframe(1), value)
    return found


def is_in_training() -> bool:
    """Return whether a training of this process is under way."""
    return _trainings > 0


@contextlib.contextmanager
def during_training() -> Iterator[None]:
    """Let all calls be a training's meanwhile: its hooks have their own agreement."""
    global _trainings  # noqa: PLW0603  (one process runs one script)
    _trainings += 1
    try:
        yield
    finally:
        _trainings -= 1


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
    keras = sys.modules.get(_KERAS_STATE)
    generator = None if keras is None else keras.get_global_attribute(_KERAS_NAME)
    if generator is not None:  # somebody has drawn from Keras's own
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
