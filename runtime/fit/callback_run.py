"""Keras's callbacks as the companion of a stage: they see each epoch as under ``fit``.

Every worker calls every callback with the same logs, so all decide alike.
"""

from __future__ import annotations

from typing import Any

import keras

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.work_plan import Work
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.training.companion import Commit, Notes


class CallbackRun:
    """The callbacks of one call of ``fit``, and its ``History``."""

    def __init__(self, model: Any, call: FitCall, replica: Replica) -> None:
        self._model = model
        self._call = call
        self._replica = replica
        self._callbacks = _callback_list(model, call)
        self._has_begun = False
        self._is_over = False
        self._logs: dict[str, float] = {}

    @property
    def is_over(self) -> bool:
        """Whether a callback has stopped the training."""
        return self._is_over

    def restore(self, cursor: Cursor, notes: Notes | None) -> None:
        """Begin, or go on with the history that was kept."""
        if not self._has_begun:
            self._has_begun = True
            self._model.stop_training = False
            self._callbacks.on_train_begin()
        if notes is not None:
            self._is_over = bool(notes["is_over"])
            self.history.epoch = list(notes["epochs"])
            self.history.history = {name: list(of) for name, of in notes["history"].items()}

    def before(self, work: Work, cursor: Cursor) -> None:
        """Do nothing so far."""

    def after(self, commit: Commit) -> None:
        """Let the callbacks see the end of an epoch."""
        if not commit.has_ended_epoch:
            return
        logs = dict(commit.metrics)
        if commit.work is Work.EVALUATE and commit.validation is not None:
            logs |= {f"val_{name}": value for name, value in commit.validation.items()}
        self._logs = logs
        self._callbacks.on_epoch_end(commit.epoch - 1, logs)
        self._is_over = bool(self._model.stop_training)

    def notes(self) -> Notes:
        """Return the history so far, and whether the training is over."""
        return {
            "is_over": self._is_over,
            "epochs": list(self.history.epoch),
            "history": {name: list(of) for name, of in self.history.history.items()},
        }

    def tensors(self) -> Tensors:
        """Return nothing so far."""
        return {}

    def load(self, tensors: Tensors) -> None:
        """Do nothing so far."""

    def end(self) -> None:
        """Tell the callbacks that the training is over."""
        self._callbacks.on_train_end(self._logs)

    @property
    def history(self) -> Any:
        """Keras's ``History`` of the call."""
        return self._model.history


def _callback_list(model: Any, call: FitCall) -> Any:
    return keras.callbacks.CallbackList(
        call.callbacks,
        add_history=True,
        add_progbar=False,
        model=model,
        verbose=0,
        epochs=call.epochs,
    )
