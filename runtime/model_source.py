"""The user's model, built by a function of the user's script, outside any training."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import JobError, ProgramError, UsageError
from holdfast.runtime.training_refusal import TrainingRefused, training_refused

_MODULE_NAME = "holdfast_model"
"""Not ``__main__``: what a script does behind that guard is not wanted here."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A function without arguments in a script, and the shape of one sample if need be."""

    script: Path
    function: str
    input_shape: tuple[int, ...] | None = None

    @staticmethod
    def parse(text: str, input_shape: tuple[int, ...] | None = None) -> ModelSource:
        """Return what ``script.py:function`` names.

        Raises:
            UsageError: it is not of that form, or there is no such script.
        """
        script, colon, function = text.rpartition(":")
        if not colon or not function.isidentifier():
            raise UsageError(f"--model is {text!r}; give it as script.py:function")
        if not Path(script).is_file():
            raise UsageError(f"{script} does not exist; give --model as script.py:function")
        return ModelSource(Path(script), function, input_shape)

    def build(self) -> Any:
        """Return the model, with all of its variables and its optimizer's.

        Raises:
            UsageError: the script has no such function, or the model needs an input shape.
            ProgramError: the user's code fails.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        function = self._namespace().get(self.function)
        if not callable(function):
            raise UsageError(f"{self.script} has no function {self.function}; name another one")
        with _users_fault(f"{self.script}:{self.function}"):
            model = function()
        if not hasattr(model, "trainable_variables"):
            raise UsageError(
                f"{self.script}:{self.function} returns a {type(model).__name__}; "
                "name a function that returns a Keras model"
            )
        self._build_variables(model)
        return model

    def _namespace(self) -> dict[str, Any]:
        """Run the script as a module, up to its training if it has that outside a guard."""
        module = types.ModuleType(_MODULE_NAME)
        module.__file__ = str(self.script.resolve())
        sys.path.insert(0, str(self.script.resolve().parent))
        sys.modules[_MODULE_NAME] = module
        with (
            _users_fault(str(self.script)),
            contextlib.suppress(TrainingRefused),
            training_refused(),
        ):
            exec(compile(self.script.read_bytes(), module.__file__, "exec"), module.__dict__)
        return module.__dict__

    def _build_variables(self, model: Any) -> None:
        if not model.built and self.input_shape is None:
            raise UsageError(
                f"the model of {self.script}:{self.function} does not know the shape of its input; "
                "give that of one sample, as in --input-shape 28,28,1"
            )
        with _users_fault(f"building the model of {self.script}:{self.function}"):
            if not model.built:
                model.build((None, *(self.input_shape or ())))
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _users_fault(doing: str) -> Iterator[None]:
    """Let whatever the user's code raises end the command with one sentence."""
    try:
        yield
    except JobError:
        raise
    except SystemExit as error:
        raise ProgramError(f"{doing} ended the program with exit code {error.code}") from error
    except Exception as error:
        raise ProgramError(f"{doing} raised {type(error).__name__}: {error}") from error
