"""Two runs side by side: what is the same is not repeated, and what differs is all there."""

from __future__ import annotations

import dataclasses
from typing import Any

from told_run import DIGEST, told_lines, told_run

from holdfast.runtime.run.run_directory import RunRecord
from holdfast.runtime.tools.comparison import compare

ONE = told_run()


def record(**numerics: Any) -> RunRecord:
    return RunRecord("r1", 1, 0.0, microbatches=4, seed=0, threads=1, numerics=numerics)


def test_run_with_the_same_course_differs_in_nothing() -> None:
    found = compare(ONE, told_run())

    assert {b for _, _, b in found.outcome} == {"="}
    assert found.options == ()
    assert {row[2] for row in found.epochs[:2]} == {"="}


def test_outcome_has_each_count_beside_the_other() -> None:
    calm = [line for line in told_lines() if line["event"] not in ("failure", "relaunch")]

    rows = {name: (a, b) for name, a, b in compare(ONE, told_run(calm)).outcome}

    assert rows["deaths"] == ("3", "0")
    assert rows["relaunches"] == ("1", "0")
    assert rows["state sha256"] == (DIGEST, "=")
    assert rows["wall time"] == ("30.0 s", "=")


def test_options_and_numerics_are_told_where_they_differ() -> None:
    a = dataclasses.replace(ONE, record=record(onednn=True, keras="3.1"))
    asked = {"spares": 1, "hosts": ["a:2", "b:1"], "options": ["--save-every 50", "--fit"]}
    b = dataclasses.replace(told_run(told_lines(**asked)), record=record(onednn=False))

    assert compare(a, b).options == (
        ("onednn", "True", "False"),
        ("keras", "3.1", "-"),
        ("spares", "-", "1"),
        ("hosts", "-", "a:2 b:1"),
        ("--save-every", "-", "50"),
    )


def test_metrics_of_both_stand_at_the_epochs_of_both() -> None:
    lines = told_lines()
    for line in lines:
        if line["event"] == "epoch":
            line["metrics"] = {"other": 1.0, "loss": 0.9}
    short = [line for line in lines if line.get("epoch") != 3]

    found = compare(ONE, told_run(short))

    assert found.heads == ("epoch", "loss A", "loss B", "val_loss A", "val_loss B")
    assert found.epochs == (
        ("1", "0.9000", "=", "1.0000", "="),
        ("2", "0.5000", "0.9000", "0.6000", "="),
    )


def test_metrics_that_only_look_alike_are_both_shown() -> None:
    lines = told_lines()
    for line in lines:
        if line["event"] == "epoch":
            line["metrics"] = {"loss": line["metrics"]["loss"] + 1e-9}

    found = compare(ONE, told_run(lines))

    assert found.epochs[0][1:3] == ("0.9000", "0.9000")


def test_times_are_those_that_one_of_both_has_spent() -> None:
    calm = [line for line in told_lines() if line["event"] not in ("relaunch", "launch")]

    rows = {name: (a, b) for name, a, b in compare(ONE, told_run(calm)).times}

    assert rows["relaunch"][1] == "-"
    assert "renewal" not in rows
