"""The help of the commands: by what they are for, and of each its options and two examples.

click's own formatter writes it: plain text at any width, that a pipe and a search can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from holdfast.runtime.options.job_options import OPTIONS
from holdfast.runtime.options.removed import nearest

GROUPS = ("Run", "Look", "Checkpoints", "Trouble")
"""What the commands are for, in the order of the help."""

_LONGEST_SUMMARY = 200
"""Letters: more than the first sentence on any command has."""


class Documented(click.Command):
    """A command with a place in one of ``GROUPS``, whose help has options in groups, and examples.

    ``examples`` are command lines; a test parses them.
    """

    def __init__(
        self, *args: Any, place: tuple[str, int], examples: tuple[str, ...], **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.place = place
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of a job under the names of their groups, and all others after them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                option = OPTIONS.get(parameter.name or "")
                is_of_a_job = option is not None and self.name in option.commands
                groups.setdefault(option.group if option and is_of_a_job else "", []).append(line)
        rest = groups.pop("", [])
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)
        with formatter.section("Other options" if groups else "Options"):
            formatter.write_dl(rest)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and then what else there is to say."""
        with formatter.section("Examples"):
            for example in self.examples:  # as it is: a line that is broken cannot be copied
                formatter.write(f"{'':{formatter.current_indent}}holdfast {example}\n")
        super().format_epilog(ctx, formatter)


def write_commands(
    formatter: click.HelpFormatter, groups: Mapping[str, Sequence[click.Command]]
) -> None:
    """Write the first sentence on each command in full, by groups; click cuts it to a line."""
    width = max(len(str(command.name)) for group in groups.values() for command in group)
    for title, members in groups.items():
        with formatter.section(title):
            formatter.write_dl(
                [
                    (f"{one.name:{width}}", one.get_short_help_str(_LONGEST_SUMMARY))
                    for one in members
                ]
            )


def hint_for(word: str, names: Sequence[str]) -> str:
    """Return what may have been meant by a word that is no command."""
    if word.endswith(".py") or os.path.isfile(word):
        return f"did you mean `holdfast run {word}`?"
    return nearest(word, names, "`holdfast --help` lists them", form="`holdfast {}`")
