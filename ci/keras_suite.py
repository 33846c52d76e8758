"""The whole suite of Keras scripts, one line a script; see ci/keras."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from suite_run import run_plain, run_script
from suite_table import SUITE


def main() -> int:
    """Run the scripts that the command line names; return the exit code."""
    options = _options()
    names = options.names or list(SUITE)
    failed = 0
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, name in enumerate(names, start=1):
            run = run_plain if options.plain else run_script
            outcome = run(SUITE[name], (folder / name).resolve())
            failed += bool(outcome.complaints)
            print(f"keras: {number} of {len(names)}: {outcome}", flush=True)
    print(f"keras: {failed} of {len(names)} scripts failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITE))
    parser.add_argument("--plain", action="store_true", help="plain Keras only")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave all files here")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SUITE]
    if unknown:
        parser.error(f"no script is called {', '.join(unknown)}: choose among {', '.join(SUITE)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
