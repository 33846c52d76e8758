"""All victims, in the order of the tables."""

from __future__ import annotations

from victim import Victim

from victims.begin import BEGINS
from victims.commit import COMMITS
from victims.maintenance import Care
from victims.mend import Mend
from victims.rivals import Rivals
from victims.save import SAVES
from victims.shares import SHARES

_VICTIMS: tuple[Victim, ...] = (
    *(*SAVES, *COMMITS, *SHARES),
    *(Mend(), Care(), *BEGINS, Rivals()),
)
VICTIMS = {victim.name: victim for victim in _VICTIMS}
