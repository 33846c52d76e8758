"""How fast a training loop is while a process beside it writes checkpoints."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from saves.state import State, make_state, size_of

WINDOW_S = 1.5
_NICENESS = 10
_BATCH, _WIDTH = 128, 512
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def speeds(state: State, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Return the steps a second of windows without and with saves in flight, in turn."""
    rates: dict[str, list[float]] = {"idle": [], "saving": []}
    with _child(_train) as trainer, _child(_write, size_of(state), directory) as writer:
        _ask(writer, "stop")
        _ask(trainer, WINDOW_S)
        for turn in range(rounds):
            for name in ("idle", "saving") if turn % 2 else ("saving", "idle"):
                if name == "saving":
                    writer.send("go on")
                rates[name].append(_ask(trainer, WINDOW_S))
                if name == "saving":
                    # A save that was begun ends before the idle window begins.
                    _ask(writer, "stop")
    return rates


@contextmanager
def _child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a fresh process of one thread at the other end of a pipe, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    os.environ.update(_ONE_THREAD)
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(10)
        process.terminate()


def _ask(child: Connection, message: object) -> float:
    child.send(message)
    answer: float = child.recv()
    return answer


def _train(orders: Connection) -> None:
    """Take steps of a small network for as many seconds as asked; answer with steps a second."""
    step = _make_step()
    for seconds in _orders(orders):
        steps, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            step()
            steps += 1
        orders.send(steps / (now - begin))


def _make_step() -> Callable[[], None]:
    """Return one step of SGD, by hand: two layers of 512, a batch of 128."""
    random = np.random.default_rng(0)
    inputs, targets = random.standard_normal((2, _BATCH, _WIDTH), np.float32)
    first, second = random.standard_normal((2, _WIDTH, _WIDTH), np.float32) / _WIDTH

    def step() -> None:
        nonlocal first, second
        hidden = np.maximum(inputs @ first, 0)
        error = (hidden @ second - targets) / _BATCH
        back = (error @ second.T) * (hidden > 0)
        second -= 0.01 * (hidden.T @ error)
        first -= 0.01 * (inputs.T @ back)

    return step


def _write(orders: Connection, size_bytes: int, directory: Path) -> None:
    """Write the same snapshot again and again, niced, while told to go on."""
    from saves.ways import image_way

    os.nice(_NICENESS)
    way, turn = image_way(make_state(size_bytes)), 0
    for order in _orders(orders):
        while order == "go on":
            target = directory / f"save-{turn}"
            turn += 1
            way.write(target)
            shutil.rmtree(target)
            if orders.poll():
                break
        else:
            orders.send(turn)


def _orders(orders: Connection) -> Iterator[Any]:
    while True:
        try:
            yield orders.recv()
        except EOFError:
            return
