"""The callbacks of a call of ``fit``, made ready to run beside a stage."""

from __future__ import annotations

import functools
from typing import Any

from holdfast.runtime.callbacks.callback_files import FirstFiles
from holdfast.runtime.callbacks.callback_rounds import CallbackRounds
from holdfast.runtime.callbacks.callback_run import CallbackRun
from holdfast.runtime.callbacks.event_files import EventFiles
from holdfast.runtime.callbacks.first_saves import FirstSaves, KeptLoads, install
from holdfast.runtime.fit.directories import shared_directories
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.script_files import private_folder
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.training.stages import Stages, stages_of_script


def callback_run(
    model: Any, call: FitCall, replica: Replica, stages: Stages, steps: int | None
) -> CallbackRun:
    """Return the callback host of the next stage; ``steps`` are those of an epoch, if known."""
    context, folder = stages.context, private_folder()
    directories = shared_directories()
    if directories is not None:
        directories.training = stages.stage.number
    files = FirstFiles(stages.is_first, folder, context.notify, _wrote, _place)
    if directories is not None:
        files.logs += directories.logs
        if stages.is_first:
            directories.temporary.lead()
    token = f".{context.config.run_id}-{stages.stage.number}"
    rounds = CallbackRounds(
        call.callbacks,
        model,
        replica,
        files,
        EventFiles(files, token),
        saves(),
        {"epochs": call.epochs, "steps": steps},
    )
    for word in rounds.words:
        context.notify(word)
    return CallbackRun(
        model, replica, rounds, range(call.initial_epoch, call.epochs), context.notify
    )


@functools.cache
def saves() -> FirstSaves:
    """Return this process's way to save models; the first call exchanges Keras's functions."""
    context = stages_of_script().context
    directories = shared_directories()
    naming = () if directories is None else (directories.temporary.lasting_name,)
    kept = KeptLoads(RunDirectory(context.run_dir.resolve()).loaded_path, context.notify, *naming)
    found = FirstSaves(_is_real, private_folder(), kept, _wrote)
    if directories is not None:
        directories.before_removal.append(kept.before_removal)
    install(found)
    return found


def _wrote(path: str) -> None:
    directories = shared_directories()
    if directories is not None:
        directories.wrote(path)


def _place(path: str) -> str:
    directories = shared_directories()
    return path if directories is None else directories.temporary.place(path)


def _is_real(path: str) -> bool:
    directories = shared_directories()
    is_apart = directories is not None and directories.temporary.is_apart(path)
    return is_apart or stages_of_script().is_first
