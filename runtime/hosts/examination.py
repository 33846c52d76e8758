"""A host that comes back, asked what it was asked when the job began, and compared with that.

It was away: what it runs may have been mended, updated or copied meanwhile.  So its agent is asked
before it gets the job, and the head listens for it on the job's network as long as it is asked.
The comparison is that of the start (`checked_hosts`), with what all hosts have said then: the
workers of the others run what the job began with.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace

from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.checked_hosts import (
    SAME,
    Asked,
    CheckedHosts,
    common_numerics,
    differences,
    refuse,
    unlike_devices,
    unlike_distributions,
)
from holdfast.runtime.hosts.network import Place, choose
from holdfast.runtime.hosts.probe import HostFacts, Question
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.network import MeetingPlace


class Examination:
    """The question to one host, and what is made of its answer; it listens until closed."""

    def __init__(
        self, begun: CheckedHosts, name: str, question: Question, environment: Mapping[str, str]
    ) -> None:
        """Listen for a host of a job that has ``begun``; ``environment`` is that of its workers."""
        self._begun = begun
        self._names = [host.name for host in begun.hosts]
        self._place = self._names.index(name)
        self._environment = environment
        word, network = secrets.token_hex(8), begun.network
        self._tried = (Place(network.network, network.addresses[0]),)
        self._listening = contextlib.ExitStack()
        meeting = MeetingPlace(((place.network, place.address) for place in self._tried), word)
        self._listening.enter_context(meeting)
        self.question = replace(question, meetings=meeting.meetings, word=word)
        self.refusal = ""
        """What differs on the host, and what to do; empty as long as nothing is known to."""

    def admits(self, answer: object) -> bool:
        """Return whether a host with this answer may come back; ``refusal`` says why not."""
        self.close()
        self.refusal = self._fault_of(answer)
        return not self.refusal

    def close(self) -> None:
        """Listen no more."""
        self._listening.close()

    def _fault_of(self, answer: object) -> str:
        name = self._names[self._place]
        try:
            found = from_plain(HostFacts, answer)
        except ValueError as error:
            return f"the holdfast of {name} gives another answer ({error}): {SAME}"
        facts = list(self._begun.facts)
        facts[self._place] = found
        try:
            refuse(list(self._differences(facts)))
            choose(str(self._begun.network.network), self._names, facts, self._tried)
        except UsageError as error:
            return str(error)
        return ""

    def _differences(self, facts: list[HostFacts]) -> Iterator[str]:
        # What it has of the program may be another text by now: it runs what the job began with.
        facts = [replace(host, program=dict.fromkeys(host.program, "")) for host in facts]
        asked = [Asked(name, host) for name, host in zip(self._names, facts, strict=True)]
        yield from differences(asked, self.question)
        yield from unlike_devices(self._begun.hosts, asked)
        known = {*unlike_distributions([*zip(self._names, self._begun.facts, strict=True)])}
        now = unlike_distributions([*zip(self._names, facts, strict=True)])
        yield from (text for text in now if text not in known)
        needed = common_numerics(self._environment, facts)
        if needed:
            words = " ".join(f"{name}={value}" for name, value in needed.items())
            yield (
                f"{asked[self._place].name} has another processor by now, and its bits would "
                f"differ: start the job again, and all workers have {words}"
            )
