"""Write docs/options.md from the options themselves, or compare it with them.

Usage: ``python ci/options_page.py [--check]``; with ``--check`` it changes nothing and exits
with 1 if the page is out of date.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import DOCTOR, IMPORT, RUN, Option

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"

_HEAD = """\
# Options of a job

`python ci/options_page.py` writes this page from
[`runtime/options/job_options.py`](../runtime/options/job_options.py).
`./ci/check` compares the two.

Each option has one name in three places. The flag `--save-every` is `HOLDFAST_SAVE_EVERY` in the
environment and `save-every` under the heading `[run]` in `holdfast.toml` in the working directory.
A flag comes before the variable, the variable before the file, and the file before the default.
A script that is started by itself (`python train.py`) reads variables and file in the same way.
`holdfast import` also reads a heading `[import]`, which comes before `[run]`.

Flags stand before the script. Everything after the script's name goes to the script. A flag of
holdfast there is refused, unless the script names it, or a file beside it that it imports. `--`
before the script passes all on: `holdfast run -n 2 -- train.py -n 9`.

`holdfast run --show-config train.py` prints each value and where it came from, and runs nothing.

| flag | default | commands | what it is for |
|---|---|---|---|
"""

_WITHOUT = """
These fields of `JobOptions` have no flag:

| field | why |
|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = [_row(name, option) for name, option in OPTIONS.items() if option.flags]
    reasons = [
        f"| `{name}` | {option.absent} |" for name, option in OPTIONS.items() if option.absent
    ]
    return _HEAD + "\n".join(rows) + "\n" + _WITHOUT + "\n".join(reasons) + "\n"


def _row(name: str, option: Option) -> str:
    cells = (
        ", ".join(f"`{flag}`" for flag in _flags(option)),
        _default(name, option),
        ", ".join(
            f"`{command}`" for command in (RUN, IMPORT, DOCTOR) if command in option.commands
        ),
        option.help,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _flags(option: Option) -> Iterator[str]:
    value = "" if option.is_switch else f" {option.metavar}"
    yield from (*option.flags[:-1], option.flags[-1] + value)
    if option.off_flag:
        yield option.off_flag


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
    if arguments != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is out of date: run `python ci/options_page.py`")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
