"""Models that callbacks and scripts save: written by the first worker only.

Keras writes weights from C, where `file_guard` sees nothing.  So its own functions to save
and to load are exchanged once, when the script imports Keras.

* In a hook, a worker that is not the first puts the save off, with the weights of this
  moment.  They are tensors that TensorFlow copies at the next update, which comes after the
  agreement that drops them.
* In the script itself there is no agreement.  A worker that is not the first saves into a
  private folder, and loads the same path from there.  So a script may load what it saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.runtime.callbacks.first_files import FirstFiles


class FirstSaves:
    """One worker's way to save and to load models.

    Args:
        is_first: returns whether this worker's files are real now.
        scratch: returns a private folder, which exists.
    """

    def __init__(self, is_first: Callable[[], bool], scratch: Callable[[], Path]) -> None:
        self._is_first = is_first
        self._scratch = scratch
        self._private: dict[str, Path] = {}
        self.hooks: FirstFiles | None = None
        """The files of the hooks that run now, None outside of hooks."""

    def save(self, real: Callable[..., Any], model: Any, path: Any, *more: Any, **by: Any) -> Any:
        """Save a model or its weights with Keras's function ``real``."""
        if self.hooks is not None:
            return self._save_in_hook(lambda: real(model, path, *more, **by), model)
        absolute = os.path.abspath(os.fspath(path))
        if self._is_first():
            self._private.pop(absolute, None)
            return real(model, path, *more, **by)
        private = self._scratch() / f"saved-{len(self._private)}"
        private.mkdir(exist_ok=True)
        self._private.setdefault(absolute, private / Path(absolute).name)
        return real(model, str(self._private[absolute]), *more, **by)

    def path_to_load(self, path: Any) -> Any:
        """Return where the script's own save of ``path`` lies on this worker."""
        if not isinstance(path, (str, os.PathLike)):
            return path
        private = self._private.get(os.path.abspath(os.fspath(path)))
        return path if private is None or not private.exists() else str(private)

    def _save_in_hook(self, save: Callable[[], Any], model: Any) -> Any:
        assert self.hooks is not None
        if self.hooks.is_first:
            return save()
        then = _values(model)
        self.hooks.defers(lambda: _with_values(then, save))
        return None


def install(saves: FirstSaves) -> None:
    """Exchange Keras's functions to save and to load; done once in a process."""
    import keras
    from keras.src.saving import saving_api

    def saving(real: Any) -> Any:
        def save(model: Any, filepath: Any, *more: Any, **by: Any) -> Any:
            return saves.save(real, model, filepath, *more, **by)

        return save

    def load_model(filepath: Any, *more: Any, **by: Any) -> Any:
        return real_load_model(saves.path_to_load(filepath), *more, **by)

    def load_weights(model: Any, filepath: Any, *more: Any, **by: Any) -> Any:
        return real_load_weights(model, saves.path_to_load(filepath), *more, **by)

    real_load_model, real_load_weights = saving_api.load_model, saving_api.load_weights
    exchanged = {
        "save_model": saving(saving_api.save_model),
        "save_weights": saving(saving_api.save_weights),
        "load_model": load_model,
        "load_weights": load_weights,
    }
    for name, function in exchanged.items():
        real = getattr(saving_api, name)
        function.__name__, function.__doc__ = name, real.__doc__
        for module in (saving_api, keras.saving, keras.models):
            if getattr(module, name, None) is real:
                setattr(module, name, function)
    keras.Model.export = saving(keras.Model.export)


def _values(model: Any) -> list[tuple[Any, Any]]:
    """Return the variables of model and optimizer with what they hold now."""
    variables = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        variables += optimizer.variables
    return [(variable, variable.value.read_value()) for variable in variables]


def _with_values(values: list[tuple[Any, Any]], call: Callable[[], Any]) -> None:
    """Call with other values in the variables, and give them back what they hold now."""
    now = [(variable, variable.value.read_value()) for variable, _ in values]
    try:
        _assign(values)
        call()
    finally:
        _assign(now)


def _assign(values: list[tuple[Any, Any]]) -> None:
    for variable, value in values:
        variable.assign(value)
