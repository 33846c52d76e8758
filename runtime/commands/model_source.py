"""The user's model, made by the user's script outside any training.

The script is run up to its training, ``fit`` or a trainer, which refuses to train.  The model
is the result of a function of the script, or the training's model.  In both cases the data of
the training tell the shape of an input, if the model does not know it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import JobError, ProgramError, UsageError
from holdfast.runtime.model.replica import make_model
from holdfast.runtime.run.run_directory import RunRecord
from holdfast.runtime.worker.script_draws import seed_script
from holdfast.runtime.worker.training_refusal import RefusedTraining, TrainingRefused

_MODULE_NAME = "holdfast_model"
"""Not ``__main__``: with a function to call, the code behind that guard must not run."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A script, the function in it that makes the model, and the shape of one sample.

    Without a function the model is the training's.
    """

    script: Path
    function: str | None = None
    input_shape: tuple[int, ...] | None = None

    @staticmethod
    def parse(text: str, input_shape: tuple[int, ...] | None = None) -> ModelSource:
        """Return the source that ``script.py:function`` or ``script.py`` names.

        Raises:
            UsageError: the text is not of that form, or the script does not exist.
        """
        script, colon, function = text.rpartition(":")
        if not colon:
            script, function = text, ""
        elif not function.isidentifier():
            raise UsageError(f"--model is {text!r}; give it as script.py:function")
        if not Path(script).is_file():
            raise UsageError(f"{script} does not exist; give --model as script.py:function")
        return ModelSource(Path(script), function or None, input_shape)

    def __str__(self) -> str:
        return str(self.script) if self.function is None else f"{self.script}:{self.function}"

    def build(self, stage: int = 1, record: RunRecord | None = None) -> Any:
        """Return the model, with all of its variables and its optimizer's.

        ``stage`` is the number of the training, from 1, for a script that trains several models.
        With the ``record`` of its run the script draws what it has drawn there.

        Raises:
            UsageError: the script has no such model, or nothing tells the shape of its input.
            ProgramError: the user's code fails.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from holdfast.runtime.fit.model_only import model_only  # it loads all that trains

        module = types.ModuleType("__main__" if self.function is None else _MODULE_NAME)
        module.__file__ = str(self.script.resolve())
        if record is not None:
            seed_script(record.seed, record.draw_seed or record.run_id, self.script.resolve())
        with _in_place_of(module), model_only(stage) as refusal:
            with _users_fault(str(self.script)), contextlib.suppress(TrainingRefused):
                exec(compile(self.script.read_bytes(), module.__file__, "exec"), vars(module))
            training = refusal.training
            model = self._make(vars(module), training)
        if not hasattr(model, "trainable_variables"):
            raise UsageError(
                f"{self} makes a {type(model).__name__}, which is no Keras model; "
                "name a function that returns one, or export to .npz"
            )
        self._build_variables(model, training)
        return model

    def _make(self, namespace: Mapping[str, Any], training: RefusedTraining | None) -> Any:
        origin = self._origin(namespace, training)
        with _users_fault(str(self)):
            return make_model(origin)

    def _origin(self, namespace: Mapping[str, Any], training: RefusedTraining | None) -> Any:
        if self.function is not None:
            function = namespace.get(self.function)
            if not callable(function):
                raise UsageError(f"{self.script} has no function {self.function}; name another one")
            return function
        if training is None:
            raise UsageError(
                f"{self.script} does not come to model.fit() or to a Trainer's run(); "
                "give the function that makes the model, as --model script.py:function"
            )
        return training.model

    def _build_variables(self, model: Any, training: RefusedTraining | None) -> None:
        if not model.built and self.input_shape is None and training is None:
            raise UsageError(
                f"the model of {self} does not know the shape of its input; "
                "give that of one sample, as in --input-shape 28,28,1"
            )
        with _users_fault(f"building the model of {self}"):
            if not model.built and self.input_shape is not None:
                model.build((None, *self.input_shape))
            elif not model.built and training is not None:
                model(training.first_inputs())
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _in_place_of(module: types.ModuleType) -> Iterator[None]:
    """Let a script find itself, its neighbours and no arguments, as if started by Python."""
    script = str(module.__file__)
    argv, before = sys.argv, sys.modules.get(module.__name__)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.argv = argv
        if before is not None:
            sys.modules[module.__name__] = before


@contextlib.contextmanager
def _users_fault(doing: str) -> Iterator[None]:
    """Turn any error of the user's code into one sentence that ends the command."""
    try:
        yield
    except JobError:
        raise
    except TrainingRefused as error:  # a function that trains, and not the script
        raise ProgramError(f"{doing}: {error}") from error
    except SystemExit as error:
        raise ProgramError(f"{doing} ended the program with exit code {error.code}") from error
    except Exception as error:
        raise ProgramError(f"{doing} raised {type(error).__name__}: {error}") from error
