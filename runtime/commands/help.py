"""The help of the commands: which there are, by what they are for, and two examples of each.

click's own formatter writes it: plain text at any width, that a pipe and a search can read.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

import click

from holdfast.runtime.options.job_options import OPTIONS

GROUPS: dict[str, tuple[str, ...]] = {
    "Run": ("run", "attach", "stop", "demo"),
    "Look": ("status", "logs", "report", "list"),
    "Checkpoints": ("save", "inspect", "verify", "repair", "export"),
    "Trouble": ("doctor",),
}
"""The commands, by what a user wants to do."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "attach": ("attach", "attach holdfast-train"),
    "demo": ("demo", "demo --keep"),
    "doctor": ("doctor", "doctor --hosts a:4,b:4"),
    "export": (
        "export --to weights.npz",
        "export holdfast-train --to model.keras --model train.py",
    ),
    "inspect": ("inspect", "inspect holdfast-train --diff 100 200"),
    "list": ("list", "list /scratch/runs"),
    "logs": ("logs -f", "logs holdfast-train --worker 2"),
    "repair": (
        "repair --from /backup/holdfast-train",
        "repair holdfast-train --from /backup/holdfast-train --step 200",
    ),
    "report": ("report", "report holdfast-train --html"),
    "run": (
        "run -n 4 train.py --epochs 20",
        "run --hosts a:4,b:4 --save-every 10min train.py",
    ),
    "save": ("save", "save holdfast-train --timeout 60"),
    "status": ("status", "status holdfast-train --watch"),
    "stop": ("stop", "stop holdfast-train --now"),
    "verify": ("verify", "verify holdfast-train --step 200"),
}
"""Two command lines for each command; a test parses them."""

_LONGEST_SUMMARY = 200
"""Letters: more than the first sentence on any command has."""


class Documented(click.Command):
    """A command whose help has options in groups, and examples."""

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
        examples = EXAMPLES.get(self.name or "", ())
        if examples:
            with formatter.section("Examples"):
                for example in examples:  # as it is: a line that is broken cannot be copied
                    formatter.write(f"{'':{formatter.current_indent}}holdfast {example}\n")
        super().format_epilog(ctx, formatter)


def write_commands(formatter: click.HelpFormatter, commands: dict[str, click.Command]) -> None:
    """Write the first sentence on each command in full, by groups; click cuts it to a line."""
    others = tuple(name for name in commands if not any(name in of for of in GROUPS.values()))
    width = max(map(len, commands))
    for title, names in (*GROUPS.items(), ("Other commands", others)):
        lines = [
            (f"{name:{width}}", commands[name].get_short_help_str(_LONGEST_SUMMARY))
            for name in names
            if name in commands
        ]
        if lines:
            with formatter.section(title):
                formatter.write_dl(lines)


def hint_for(word: str, names: Sequence[str]) -> str:
    """Return what may have been meant by a word that is no command."""
    if word.endswith(".py") or os.path.isfile(word):
        return f"did you mean `holdfast run {word}`?"
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean `holdfast {close[0]}`?" if close else "`holdfast --help` lists them"
