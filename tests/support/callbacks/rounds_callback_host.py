"""A callback host that acts in rounds, as callbacks do: by the metrics alone, or by its own
dice."""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import Decision, Effects
from holdfast.recovery.work_plan import Work
from holdfast.runtime.training.callback_host import Commit, Notes

MESSAGE = b"the first worker's"


class RoundsCallbackHost:
    """Changes weights and remembers what it did, in one or two rounds after each commit.

    With dice it does another thing on each worker; ``odds`` are those of a stop.  The round of
    number ``fails_in``, from 1, raises an error.
    """

    def __init__(
        self,
        replica: Any,
        dice: random.Random | None = None,
        odds: float = 0.0,
        fails_in: int | None = None,
    ) -> None:
        self._replica = replica
        self._dice = dice
        self._odds = odds
        self._fails_in = fails_in
        self.error: Exception | None = None
        self._rounds: deque[Callable[[], None]] = deque()
        self._is_first = False
        self._wants_stop = False
        self.has_effects = False
        self.is_over = self.cuts_epoch = False
        self.memory: dict[str, Any] = {"rounds": 0, "tale": []}
        self.kept = np.zeros(3)
        self.messages: list[bytes] = []

    def restore(self, cursor: Cursor, notes: Notes | None) -> None:
        if notes is not None:
            self.memory = json.loads(json.dumps(notes["memory"]))
            self.is_over = bool(notes["is_over"])
            self.error = ValueError(notes["error"]) if notes["error"] else self.error
        elif not self.memory["rounds"]:
            self._begin(1)

    def before(self, work: Work, cursor: Cursor) -> None:
        assert not self.has_effects, "a transaction began before the workers agreed"

    def acts_after(self, commit: Commit) -> bool:
        return True

    def after(self, commit: Commit) -> None:
        self._begin(1 + commit.has_ended_epoch)

    def end(self) -> None:
        self._begin(1)

    def lead(self, *, is_first: bool) -> None:
        self._is_first = is_first

    def effects(self) -> Effects:
        notes = json.dumps(self.memory).encode()
        state = self._replica.weights.tobytes() + self.kept.tobytes()
        digests = [hashlib.sha256(found).digest()[:8] for found in (notes, state)]
        return Effects(self._wants_stop, *digests, error=str(self.error or "").encode())

    def message(self) -> bytes:
        return MESSAGE if self._is_first else b"another's"

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        self.messages.append(message)
        if notes is not None:
            self.memory = json.loads(json.dumps(notes["memory"]))
        self.is_over = self.is_over or decision.is_stop_wanted or decision.raises
        self._wants_stop = self.has_effects = False
        self._next()

    def settings(self) -> dict[str, str]:
        return {}

    def notes(self) -> Notes:
        error = str(self.error or "") if self.is_over else ""
        memory = json.loads(json.dumps(self.memory))  # a save may encode it later
        return {"memory": memory, "is_over": self.is_over, "error": error}

    def tensors(self) -> Tensors:
        return {"kept": self.kept}

    def load(self, tensors: Tensors) -> None:
        self.kept = np.array(tensors["kept"])

    def _begin(self, rounds: int) -> None:
        self._rounds.extend([self._round] * rounds)
        self._next()

    def _next(self) -> None:
        if self._rounds and not self.has_effects:
            self._rounds.popleft()()

    def _round(self) -> None:
        self.has_effects = True
        chance = 0.5 if self._dice is None else self._dice.random()
        self._replica.weights *= np.float32(1 - chance / 100)
        self.memory["rounds"] += 1
        self.memory["tale"].append(chance)
        self.kept[self.memory["rounds"] % 3] = chance
        self._wants_stop = self._dice is not None and self._dice.random() < self._odds
        if self.memory["rounds"] == self._fails_in:
            self.error = ValueError("no good trial")
            self._rounds.clear()
