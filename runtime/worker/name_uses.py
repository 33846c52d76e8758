"""Whether a line of a script reads clock or pid for a name, or to measure and to act.

``datetime.now()`` in the name of a folder must be the same on all workers and in all launches.
``time.time()`` that is subtracted from another one must be real, and so must the pid that gets a
signal.  The text of the script tells which is which:

* what becomes a part of a text or of a path is a name, unless it is only shown;
* what is added, subtracted or compared as a number measures;
* a number that is an argument, as of ``seed``, is a name if it measures nowhere else;
* the pid is a name in texts and seeds only: other arguments may act on the process.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterable, Iterator
from enum import IntEnum, auto
from types import CodeType

_TEXTS = frozenset({"str", "repr", "format", "join", "strftime", "isoformat", "ctime", "asctime"})
_FIELDS = frozenset({"year", "month", "day", "hour", "minute", "second", "microsecond"})
_NUMBERS = frozenset({"int", "round", "float", "abs", "localtime", "gmtime", "fromtimestamp"})
_SHOWING = frozenset({"print", "log", "debug", "info", "warning", "error", "notify"})
_ACTING = frozenset(
    {"append", "sleep", "utime", "kill", "killpg", "Process", "system", "run", "call", "Popen"}
    | {"check_call", "check_output"}
)
_SEEDING = ("seed", "rng", "random", "generator", "key")
_PROCESS_TEXTS = ("/proc", "kill", "-p ")
_DEEPEST = 4
"""Variables that hold others are followed so far."""


class _Use(IntEnum):
    """What a value is used for; of several uses the largest counts."""

    NOTHING = auto()
    ARGUMENT = auto()
    MEASURE = auto()
    NAME = auto()
    ACT = auto()


def is_for_a_name(code: CodeType, line: int, instruction: int, function: str) -> bool:
    """Return whether the call of ``function`` that a frame stands at is made for a name.

    A script without its text reads for no name.
    """
    place = id(code), instruction, function
    if place not in _FOUND:
        _FOUND[place] = code, _is_for_a_name(code, line, instruction, function)
    return _FOUND[place][1]


_FOUND: dict[tuple[int, int, str], tuple[CodeType, bool]] = {}
"""Of each call, with its code, whose number is no other one's as long as it is held."""


def _is_for_a_name(code: CodeType, line: int, instruction: int, function: str) -> bool:
    source = _source(code.co_filename)
    if source is None:
        return False
    end = _end_of_call(code, instruction)
    if end is None:
        on_line = source.calls_by_line.get(line, ())
        found = [call for call in on_line if _last_name(call.func) in (function, "today")]
    else:
        found = source.calls_by_end.get(end, [])
    names = {_Use.NAME} if function == "getpid" else {_Use.NAME, _Use.ARGUMENT}
    return any(source.use_of(call) in names for call in found)


def _end_of_call(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """Return line and column of the end of a call, None on Python 3.10, which knows lines only."""
    if not hasattr(code, "co_positions"):
        return None
    place = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    _, line, _, column = place
    return None if line is None or column is None else (line, column)


@functools.lru_cache(maxsize=64)
def _source(file: str) -> _Source | None:
    text = "".join(linecache.getlines(file))
    try:
        return _Source(ast.parse(text)) if text else None
    except SyntaxError:
        return None


class _Source:
    """The text of one file, and how its values are used."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents: dict[ast.AST, ast.AST] = {}
        self.calls_by_line: dict[int, list[ast.Call]] = {}
        self.calls_by_end: dict[tuple[int, int], list[ast.Call]] = {}
        self._loads: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            self._parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            match node:
                case ast.Call(end_lineno=int(line), end_col_offset=int(column)):
                    self.calls_by_line.setdefault(node.lineno, []).append(node)
                    self.calls_by_end.setdefault((line, column), []).append(node)
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    self._loads.setdefault(name, []).append(node)

    def use_of(self, node: ast.expr, depth: int = 0) -> _Use:
        """Return what a value is used for, from the innermost operation outwards."""
        child: ast.AST = node
        use = _Use.NOTHING
        is_text = isinstance(node, ast.Call) and _last_name(node.func) in _TEXTS
        for parent in self._outwards(node):
            match parent:
                case ast.JoinedStr() | ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                    is_text = True
                    if any(mark in ast.unparse(parent) for mark in _PROCESS_TEXTS):
                        use = _Use.ACT
                case ast.Attribute(attr=attr):
                    is_text = is_text or attr in _TEXTS | _FIELDS or attr.startswith("tm_")
                case ast.Compare() | ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign():
                    use = _Use.NOTHING if is_text else _Use.MEASURE
                case ast.Call(func=func) if child is not func:
                    name = _last_name(func)
                    is_text = is_text or name in _TEXTS or _is_seeding(name)
                    use = _use_of_argument(name, is_text=is_text, is_direct=depth == 0)
                    if name in _SHOWING:
                        return _Use.NOTHING
                case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() if not is_text:
                    use = self._use_of_all(self._loads_of(parent), depth)
                case ast.Return() if not is_text:
                    use = self._use_of_all(self._calls_of_function(parent), depth)
            if use is not _Use.NOTHING:
                return use
            child = parent
        return _Use.NAME if is_text else _Use.NOTHING

    def _outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        while not isinstance(node, ast.stmt) and node in self._parents:
            node = self._parents[node]
            yield node

    def _loads_of(self, assignment: ast.AST) -> Iterator[ast.expr]:
        """Return all places that read the variables or attributes of an assignment."""
        for target in ast.walk(assignment):
            if isinstance(getattr(target, "ctx", None), ast.Store):
                yield from self._loads.get(_last_name(target), ())

    def _calls_of_function(self, node: ast.AST) -> Iterator[ast.expr]:
        """Return all calls of the function that a statement stands in."""
        while node in self._parents and not isinstance(node, ast.FunctionDef):
            node = self._parents[node]
        for load in self._loads.get(getattr(node, "name", ""), ()):
            call = self._parents.get(load)
            if isinstance(call, ast.Call) and call.func is load:
                yield call

    def _use_of_all(self, values: Iterable[ast.expr], depth: int) -> _Use:
        if depth == _DEEPEST:
            return _Use.NOTHING
        return max((self.use_of(value, depth + 1) for value in values), default=_Use.NOTHING)


def _use_of_argument(function: str, *, is_text: bool, is_direct: bool) -> _Use:
    if (
        function in _ACTING
        and (is_direct or not is_text)
        and not (is_text and function == "append")
    ):
        return _Use.ACT
    return _Use.NOTHING if is_text or function in _NUMBERS else _Use.ARGUMENT


def _is_seeding(function: str) -> bool:
    return any(part in function.lower() for part in _SEEDING)


def _last_name(node: ast.AST) -> str:
    """Return ``now`` for ``datetime.datetime.now``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
