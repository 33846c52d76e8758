"""Write docs/options.md from the options themselves, or compare it with them.

Usage: ``python ci/options_page.py [--check]``; with ``--check`` it changes nothing.  It exits
with 1 if the page is out of date, or does not say of an option or a command who uses it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.commands.main import all_commands
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import Option

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"

_HEAD = """\
# Options and commands

`python ci/options_page.py` writes this page from
[`runtime/options/job_options.py`](../runtime/options/job_options.py) and the commands. It
keeps what stands in each last column. `./ci/check` compares the two.
The groups are those of `--help`.

Each option has one name in three places. The flag `--save-every` is `HOLDFAST_SAVE_EVERY` in the
environment and `save-every` under the heading `[run]` in `holdfast.toml` in the working directory.
A flag comes before the variable, the variable before the file, and the file before the default.
In a path `~` and `$NAME` are replaced, wherever it stands.

Flags stand before the script. Everything after the script's name goes to the script. A flag of
holdfast there is refused, unless the script names it, or a file beside it that it imports. `--`
before the script passes all on: `holdfast run -n 2 -- train.py -n 9`.

`holdfast run --show-config train.py` prints each value and where it came from, and runs nothing.
"""

_OPTIONS = """
## {group}

| flag | default | what it does | who uses it |
|---|---|---|---|
"""

_COMMANDS = """
## Commands: {group}

| command | who uses it |
|---|---|
"""

_WITHOUT = """
## Fields without a flag

| field of `JobOptions` | why |
|---|---|
"""

_NOBODY = "nobody yet"
"""Stands in the last column of a new row until the user is written there."""


def page(users: dict[str, str]) -> str:
    """Return the page; ``users`` has the last cell of each row by the first."""

    def row(*cells: str) -> str:
        texts = (*cells, users.get(_escaped(cells[0]), _NOBODY))
        return "| " + " | ".join((*map(_escaped, cells), texts[-1])) + " |\n"

    text = _HEAD
    with_flags = [(name, found) for name, found in OPTIONS.items() if found.flags]
    for group, options in itertools.groupby(with_flags, lambda each: each[1].group):
        text += _OPTIONS.format(group=group)
        for name, found in options:
            flags = ", ".join(f"`{flag}`" for flag in _flags(found))
            text += row(flags, _default(name, found), found.help)
    for group, commands in all_commands().items():
        text += _COMMANDS.format(group=group) + "".join(row(f"`{one.name}`") for one in commands)
    without = (f"| `{n}` | {found.help} |\n" for n, found in OPTIONS.items() if not found.flags)
    return text + _WITHOUT + "".join(without)


def users_on(text: str) -> dict[str, str]:
    """Return the last cell of each row of a page by the first."""
    rows = re.findall(r"^\| (.*?) \| (?:.* \| )?(.*) \|$", text, re.MULTILINE)
    return {first: last for first, last in rows if first.startswith("`")}


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _flags(option: Option) -> Iterator[str]:
    value = "" if option.is_switch else f" {option.metavar}"
    yield from (*option.flags[:-1], option.flags[-1] + value)
    yield from filter(None, [option.off_flag])


def _default(name: str, option: Option) -> str:
    if option.default_text:
        return option.default_text
    default = {field.name: field.default for field in dataclasses.fields(JobOptions)}[name]
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is None or default == ():
        return "none"
    return f"`{','.join(default) if isinstance(default, tuple) else default}`"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return the exit code."""
    before = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    now = page(users_on(before))
    if arguments != ["--check"]:
        PAGE.write_text(now, encoding="utf-8")
    elif before != now:
        print(f"{PAGE.name} is out of date: run `python ci/options_page.py`")
        return 1
    if _NOBODY in now:
        print(f"{PAGE.name} names no user of some rows ({_NOBODY!r}): write a sentence there")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
