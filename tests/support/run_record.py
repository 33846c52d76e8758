"""A plugin that writes down which test runs, how long it took, and which has failed, as it happens.

``HOLDFAST_TEST_RECORD`` names the file; without it nothing is written.  Each line is a word
and a test: ``began`` and ``ended``, and ``failed`` before ``ended``.  So a run that was
killed in the middle of a test tells its name too.  ``took`` has the seconds of one phase of a test
before its name.  Where several processes test, the one that hands out the tests writes for all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "HOLDFAST_TEST_RECORD"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write down that a test begins."""
    _write("began", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how long a test, or what surrounds it, took, and whether it has failed."""
    _write("took", f"{report.duration:.3f} {report.nodeid}")
    if report.failed:
        _write("failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write down that a test has ended."""
    _write("ended", nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down which module cannot be imported."""
    if report.failed:
        _write("failed", report.nodeid)


def _write(word: str, nodeid: str) -> None:
    place = os.environ.get(VARIABLE)
    if place and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(place).open("a", encoding="utf-8") as record:
            record.write(f"{word} {nodeid}\n")
