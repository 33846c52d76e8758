"""What two processes say to each other: dataclasses, which travel with the names of their classes.

A link between two processes has one union of dataclasses for each direction.  That union is its
protocol, and ``MessageKinds`` reads it.  How a line travels is the business of `channel`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

from holdfast.runtime.system.channel import FDS, Message
from holdfast.runtime.system.codec import WrongValue, from_plain, to_plain

Kind_co = TypeVar("Kind_co", covariant=True)


def to_message(message: object) -> Message:
    """Return a message as it travels."""
    return {"kind": type(message).__name__, **to_plain(message)}


class MessageKinds(Generic[Kind_co]):
    """The messages that one end of a link takes.

    Args:
        kinds: a union of dataclasses, or a single one; a class with subclasses stands for these.
    """

    def __init__(self, kinds: Any) -> None:
        named = get_args(kinds) or (kinds,)
        found = [each for kind in named for each in kind.__subclasses__() or (kind,)]
        self._by_name = {kind.__name__: kind for kind in found}

    def __contains__(self, line: Message) -> bool:
        """Whether a line is one of these messages."""
        return line.get("kind") in self._by_name

    def decode(self, line: Message) -> Kind_co:
        """Return a message that has come; its descriptors stay in the line.

        Raises:
            WrongValue: it is none of these messages, or a field is wrong.
        """
        kind = self._by_name.get(line.get("kind", ""))
        if kind is None:
            raise WrongValue(f"there is no message {line.get('kind')!r} here")
        fields = {name: value for name, value in line.items() if name not in ("kind", FDS)}
        found: Kind_co = from_plain(kind, fields)
        return found
