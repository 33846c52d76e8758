"""Runs tests of Keras itself in this process, and notes what became of each.

Usage: ``own_tests.py ORDER RESULTS``.  ``ORDER`` is a file of JSON with the names of the tests,
such as ``keras.src.trainers.trainer_test.TestTrainer.test_fit_flow``; a name may also be that of
a module.  ``RESULTS`` is a folder: each process that runs this script writes a file of its own
there, a line of JSON for each test that has begun and one for each that has ended.  So it says
which test a process was in that never came to its end.

A test that can no longer train, because an earlier one has ended the training of the job, ends
the script: it has begun and not ended.

Keras tests its trainer on layers that are mixed with a ``Trainer``.  No user can write such a
class with Keras's public names, so here their base is ``keras.Model``.  Nothing else is changed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any, TextIO

import keras

_ABSENT = ("jax",)
"""Libraries that some test modules import at their top, for tests of other backends only."""


class _ModelsAsUsersWriteThem(ast.NodeTransformer):
    """Gives each class whose base is ``Trainer`` the base ``keras.Model`` instead."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        if any(isinstance(base, ast.Name) and base.id == "Trainer" for base in node.bases):
            model = ast.parse("__import__('keras').Model", mode="eval").body
            # A plain layer is a base of Model already; another layer's call() comes before Model's.
            layers = [base for base in node.bases if ast.unparse(base) == "layers.Dense"]
            node.bases = [*layers, model]
        return node


def load(name: str) -> types.ModuleType:
    """Import a test module of the installed Keras, with models as users write them.

    Raises:
        ImportError: it needs a library that is not there.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"Keras {keras.__version__} has no module {name}")
    source = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.fix_missing_locations(_ModelsAsUsersWriteThem().visit(ast.parse(source)))
    module = types.ModuleType(name)
    module.__file__ = spec.origin
    module.__package__ = name.rpartition(".")[0]
    absent = [library for library in _ABSENT if library not in sys.modules]
    sys.modules.update({library: types.ModuleType(library) for library in absent})
    try:
        exec(compile(tree, spec.origin, "exec"), module.__dict__)
    finally:
        for library in absent:
            del sys.modules[library]
    sys.modules[name] = module
    return module


class _FitCalls:
    """Notes whether any model has been fitted, whatever its ``fit`` is."""

    def __init__(self) -> None:
        self.seen = False
        fit = keras.Model.fit

        def noted(model: Any, *args: Any, **arguments: Any) -> Any:
            self.seen = True
            return fit(model, *args, **arguments)

        keras.Model.fit = noted


class _Notes(unittest.TestResult):
    """Writes a line when a test begins and when it ends."""

    def __init__(self, file: TextIO, fit_calls: _FitCalls) -> None:
        super().__init__()
        self._file = file
        self._fit_calls = fit_calls
        self._outcome: dict[str, str] = {}

    def note(self, **fields: object) -> None:
        print(json.dumps(fields), file=self._file, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        self._fit_calls.seen = False
        self._outcome = {"outcome": "passed"}
        self.note(test=_name(test), outcome="begun")
        super().startTest(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._outcome = {"outcome": "skipped", "why": reason}

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        if err[0].__name__ == "NoMoreTraining":  # the error of an earlier test has ended this job
            self.stop()
        self._outcome = {"outcome": "failed", "why": f"{err[0].__name__}: {err[1]}"[:600]}

    addFailure = addError  # noqa: N815 - unittest's name

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if self.shouldStop:
            sys.exit("no other test can train in this job")
        self.note(test=_name(test), fits=self._fit_calls.seen, **self._outcome)


def _name(test: unittest.TestCase) -> str:
    """Return the name of a test without its parameters, which absl adds to its id."""
    return test.id().partition(" ")[0]


def _tests_of(name: str) -> unittest.TestSuite:
    """Return the tests of a module, or the one test that the name ends with."""
    loader = unittest.TestLoader()
    if name.endswith("_test"):
        return loader.loadTestsFromModule(load(name))
    module, case, method = name.rsplit(".", 2)
    loaded = sys.modules.get(module) or load(module)
    return unittest.TestSuite([getattr(loaded, case)(method)])


def main() -> None:
    """Run the tests of the order, one after the other."""
    order, results = sys.argv[1:]
    fit_calls = _FitCalls()
    own = os.readlink("/proc/self")  # holdfast gives the pids in names of files one value for a run
    with (Path(results) / f"{own}.jsonl").open("w", encoding="utf-8") as file:
        notes = _Notes(file, fit_calls)
        for name in json.loads(Path(order).read_text(encoding="utf-8")):
            try:
                tests = _tests_of(name)
            except (ImportError, AttributeError, ValueError) as error:
                notes.note(test=name, outcome="absent", why=f"{type(error).__name__}: {error}")
                continue
            tests.run(notes)


if __name__ == "__main__":
    main()
