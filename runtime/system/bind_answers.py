"""The answers to binds: what would listen on all interfaces of a host listens on one.

The kernel stops a thread that has the filter of `become` in each ``bind``, and asks here
(seccomp_unotify(2)).  A socket that may not stay where it wants to be is bound to the same port of
another address.  This process does so, on a copy of the descriptor.  Every other bind goes on as
it is.

mpiexec comes to the loopback interface.  If the job has other hosts, it also binds to its address
on the network between them, and may: PMIx of the workers there connects to it.  A rank that would
listen on all interfaces comes to its host's address on that network.

The invariant: *each question is answered*, if need be by letting the call go on.  A process
whose question stays open would hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import queue
import select
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from typing import TypeAlias, TypeVar

from holdfast.runtime.system.become import install_filter
from holdfast.runtime.system.signals import start_thread

_PIDFD_GETFD = 438  # the number of the system call on all architectures
_NOTIF_RECV = 0xC0502100  # linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif)
_NOTIF_SEND = 0xC0182101  # _IOWR('!', 1, struct seccomp_notif_resp)
_QUESTION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_LONGEST_ADDRESS = 128  # struct sockaddr_storage

_FAMILY = struct.Struct("=H")
_AF_INET, _AF_INET6 = 2, 10
_LOOPBACK = IPv4Address("127.0.0.1")
_LOOPBACK6 = IPv6Address("::1")
_PLACES = {_AF_INET: slice(4, 8), _AF_INET6: slice(8, 24)}
"""By family: where its address lies in a sockaddr."""

_Address: TypeAlias = "IPv4Address | IPv6Address"
Rule: TypeAlias = Callable[[_Address], "_Address | None"]
"""Where a socket is bound that wants to be bound to an address; None if it may stay there."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Pipes:
    """The agent's ends of the pipes to a process that will become mpiexec."""

    offers: int
    """Numbers of descriptors of that process come from here, one a line."""
    answers: int
    """``y`` goes here if the descriptor could be taken, else ``n``."""

    def close(self) -> None:
        """Close both."""
        os.close(self.offers)
        os.close(self.answers)


def launcher_rule(network: IPv4Network | None = None) -> Rule:
    """Return the rule of a launcher: it keeps to the loopback interface, and to ``network``."""

    def rule(wanted: _Address) -> _Address | None:
        if wanted.is_loopback:
            return None
        if isinstance(wanted, IPv6Address):
            return _LOOPBACK6
        return None if network is not None and wanted in network else _LOOPBACK

    return rule


def rank_rule(home: IPv4Address) -> Rule:
    """Return the rule of a rank: all interfaces become its ``home``, those of IPv6 the loopback.

    An address that the rank names stays: the user's own options of MPI have chosen it.
    """

    def rule(wanted: _Address) -> _Address | None:
        if not wanted.is_unspecified:
            return None
        return _LOOPBACK6 if isinstance(wanted, IPv6Address) else home

    return rule


def bound_by(rule: Rule, call: Callable[[], _Result]) -> _Result:
    """Return the result of a call whose sockets are bound by a rule, wherever that is possible.

    The call is made in a thread of its own, since no thread loses the filter again.  This one
    answers meanwhile, so the call must give the interpreter free.
    """
    results: list[_Result] = []
    failures: list[BaseException] = []
    listeners: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended, end = os.pipe()

    def work() -> None:
        listeners.put(install_filter())
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)
        finally:
            os.close(end)

    thread = threading.Thread(target=work, name="holdfast-bound")
    thread.start()
    listener = listeners.get()
    try:
        if listener >= 0:
            _answer_all(listener, lambda _: rule, ended)
        thread.join()
    finally:
        os.close(ended)
        if listener >= 0:
            os.close(listener)  # a thread that the call has left behind cannot bind from now on
    if failures:
        raise failures[0]
    return results[0]


def serve_in_background(pid: int, pipes: Pipes, launcher: Rule, ranks: Rule | None = None) -> None:
    """Answer the binds of a child and its children in a thread, until all have ended.

    The child keeps to the rule of a launcher.  So do its own children, if ranks have no other one.
    The thread owns ``pipes``.  Raises ``OSError`` if the system has none to spare.
    """
    pidfd, rules = os.pidfd_open(pid), (launcher, ranks or launcher)
    arguments = (pid, pidfd, pipes, rules)
    thread = threading.Thread(target=_serve, args=arguments, name="holdfast-binds", daemon=True)
    try:
        start_thread(thread)
    except OSError:
        os.close(pidfd)
        pipes.close()
        raise


def moved(address: bytes, rule: Rule) -> bytes | None:
    """Return the ``sockaddr`` that a rule puts in place of another, None if that stays."""
    place = _PLACES.get(_FAMILY.unpack_from(address)[0]) if len(address) >= _FAMILY.size else None
    if place is None or len(address) < place.stop:
        return None
    found = rule(ip_address(address[place]))
    return None if found is None else address[: place.start] + found.packed + address[place.stop :]


def _serve(pid: int, pidfd: int, pipes: Pipes, rules: tuple[Rule, Rule]) -> None:
    listener = -1
    try:
        for index in range(2):  # first any descriptor, as a trial, and then the listener
            taken = _take(pidfd, pipes)
            if index == 0 and taken >= 0:
                os.close(taken)
            else:
                listener = taken
            os.write(pipes.answers, b"n" if taken < 0 else b"y")
            if taken < 0:
                break
    except OSError:
        pass  # the process has ended, or goes on without the filter
    finally:
        pipes.close()
        os.close(pidfd)
    if listener >= 0:
        _answer_all(listener, lambda caller: rules[_process_of(caller) != pid])
        os.close(listener)


def _take(pidfd: int, pipes: Pipes) -> int:
    """Return a copy of the next descriptor that is offered, -1 if it cannot be had."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(pipes.offers, 16)
        if not data:
            raise OSError(errno.EPIPE, "the process offers no descriptor")
        line += data
    return copy_of(pidfd, int(line))


def copy_of(pidfd: int, descriptor: int) -> int:
    """Return a copy of a descriptor of another process, -1 if it cannot be had."""
    kernel = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(_PIDFD_GETFD)
    copy: int = kernel.syscall(number, ctypes.c_int(pidfd), ctypes.c_int(descriptor), 0)
    return copy


def _answer_all(listener: int, rule_of: Callable[[int], Rule], ended: int | None = None) -> None:
    """Answer until the last thread with the filter has ended, or the pipe ``ended`` is closed."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    if ended is not None:
        waiting.register(ended, select.POLLIN)
    while True:
        for descriptor, events in waiting.poll():
            if descriptor != listener or not events & select.POLLIN:
                return
        question = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(listener, _NOTIF_RECV, question)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue  # the caller was killed meanwhile
            return
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _NOTIF_SEND, _answer(question, rule_of))


def _answer(question: bytearray, rule_of: Callable[[int], Rule]) -> bytes:
    token, caller, _, _, _, _, descriptor, pointer, length, *_ = _QUESTION.unpack(question)
    try:
        with Path(f"/proc/{caller}/mem").open("rb", buffering=0) as memory:
            memory.seek(pointer)
            wanted = memory.read(min(length, _LONGEST_ADDRESS))
        address = moved(wanted, rule_of(caller))
        result = None if address is None else _bind(caller, descriptor, address)
    except (OSError, ValueError):
        result = None
    if result is None:
        return _ANSWER.pack(token, 0, 0, _GO_ON)
    return _ANSWER.pack(token, 0, -result, 0)


def _bind(caller: int, descriptor: int, address: bytes) -> int | None:
    """Bind the caller's socket to ``address``; None if it should go on by itself.

    Returns 0 or an error number.
    """
    pidfd = os.pidfd_open(_process_of(caller))
    try:
        copy = copy_of(pidfd, descriptor)
    finally:
        os.close(pidfd)
    if copy < 0:
        return None
    try:
        kernel = ctypes.CDLL(None, use_errno=True)
        failed = kernel.bind(copy, address, len(address))
        return ctypes.get_errno() if failed else 0
    finally:
        os.close(copy)


def _process_of(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_text().splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return thread
