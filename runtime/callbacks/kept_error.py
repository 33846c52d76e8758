"""The error of the script that has ended a training, as a JSON object.

A training that ended so is not run again after a relaunch: its ``fit`` raises the error once more.
The object names the class and its base classes.  The error is made of the first of them that the
process has, with plain arguments and attributes.  Nothing is imported or called for it, not even
the class's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.runtime.callbacks.plain_values import Decoder, Encoder, Json, NotPlain

_MOST_BYTES = 255


def kind_of(error: BaseException) -> bytes:
    """Return the name of an error's class, shortened, as workers compare it."""
    return _name(type(error)).encode()[-_MOST_BYTES:]


def note_of(error: Exception) -> dict[str, Json]:
    """Return what is kept of ``error``."""
    return {
        "classes": [_name(kind) for kind in type(error).__mro__ if issubclass(kind, Exception)],
        "args": [_plain(value) for value in _args(error)],
        "fields": {name: _plain(value) for name, value in vars(error).items()},
    }


def made_again(note: Mapping[str, Any]) -> Exception:
    """Return the error that ``note_of`` has kept."""
    decode = Decoder().decode
    known = {_name(kind): kind for kind in _kinds(Exception)}
    kind = next(known[name] for name in note["classes"] if name in known)
    error = kind.__new__(kind, *map(decode, note["args"]))
    vars(error).update({name: decode(value) for name, value in note["fields"].items()})
    return error


def _args(error: Exception) -> tuple[object, ...]:
    """Return the arguments that an error was made of; those of an OSError lack its file."""
    if isinstance(error, OSError) and error.filename is not None:
        return (*error.args[:2], error.filename)
    return error.args


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Yield a class of errors and all that derive from it, of one name the newest last."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _plain(value: object) -> Json:
    """Return a value as JSON, a text in place of one that is not plain."""
    try:
        return Encoder().encode(value)
    except NotPlain:
        return Encoder().encode(str(value))
