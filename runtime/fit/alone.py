"""``holdfast.fit``: Keras's ``fit`` for scripts that also run without ``holdfast run``."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall


def fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train a compiled Keras model on all workers of the job and return its ``History``.

    The arguments are those of ``keras.Model.fit``.  ``batch_size`` is the global batch.  Under
    ``holdfast run`` every ``model.fit`` does this.  A script that is run alone trains with one
    worker, saves checkpoints, and resumes when it is run again.

    Raises:
        ProgramError: an argument is not valid.
        JobError: the job cannot go on; one sentence gives the reason.
        StopRequested: the job was asked to stop.  It is no ``Exception``.
    """
    from holdfast.runtime.fit import keras_fit

    try:
        call = FitCall.of(*args, **arguments)
    except TypeError as error:
        raise ProgramError(f"holdfast.fit() takes the arguments of Keras: {error}") from error
    return keras_fit.fit(model, call)
