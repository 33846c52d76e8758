"""The check on Keras's own tests: a list of known differences that may only become shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from keras_own import RUNNER, Outcome, differences, on_all_workers

PASSED, FAILED, BEGUN = Outcome("passed"), Outcome("failed", "1 is not 2"), Outcome("begun")


@pytest.mark.parametrize(
    ("outcomes", "known", "is_whole", "sentences"),
    [
        ({"a": PASSED, "b": FAILED}, {"b": "by design"}, True, []),
        ({"a": FAILED}, {}, True, ["FAILED a: 1 is not 2"]),
        ({"a": PASSED}, {"a": "by design"}, False, ["passes, so take it off the list: a"]),
        ({}, {"a": "by design"}, False, []),
        ({}, {"a": "by design"}, True, ["does not count any more, so take it off the list: a"]),
    ],
)
def test_each_difference_from_the_list_is_named(
    outcomes: dict[str, Outcome], known: dict[str, str], *, is_whole: bool, sentences: list[str]
) -> None:
    assert list(differences(outcomes, known, is_whole=is_whole)) == sentences


def test_a_test_has_passed_if_it_has_on_every_worker() -> None:
    first = {"a": PASSED, "b": PASSED, "c": PASSED, "d": BEGUN}
    second = {"a": PASSED, "b": FAILED}

    assert on_all_workers([first, second], workers=2) == {
        "a": PASSED,
        "b": FAILED,
        "c": BEGUN,
        "d": BEGUN,
    }


@pytest.mark.extended  # a part of ci/keras_own
@pytest.mark.tensorflow
def test_runner_notes_what_became_of_each_test_of_keras(tmp_path: Path) -> None:
    flow = "keras.src.trainers.trainer_test.TestTrainer.test_nested_input_predict"
    fitted = "keras.src.callbacks.lambda_callback_test.LambdaCallbackTest.test_lambda_callback"
    (tmp_path / "order").write_text(json.dumps([flow, fitted, "keras.src.absent_test.A.b"]))

    subprocess.run(
        [sys.executable, str(RUNNER), "order", "."], cwd=tmp_path, check=True, capture_output=True
    )

    (file,) = tmp_path.glob("*.jsonl")
    notes = [json.loads(line) for line in file.read_text().splitlines()]
    ends = [(note["test"], note["outcome"], note.get("fits")) for note in notes]
    assert ends == [
        (flow, "begun", None),
        (flow, "passed", False),
        (fitted, "begun", None),
        (fitted, "passed", True),
        ("keras.src.absent_test.A.b", "absent", None),
    ]
