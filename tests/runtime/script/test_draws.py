"""What a script draws without a seed: alike in a run, taken up by its next launch, handed on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.script.calls import go_on_from, random_states

HARNESS = """
import runpy, sys
from pathlib import Path
from holdfast.runtime.script.calls import go_on_from, random_states
from holdfast.runtime.script.calls import draw_alike
script = Path(sys.argv[2])
draw_alike(sys.argv[1], script)
runpy.run_path(str(script), run_name="__main__")
"""
DRAWS = {
    "generator": "float(np.random.default_rng().random())",
    "seed sequence": "str(np.random.SeedSequence().entropy)",
    "legacy": "int(np.random.RandomState().randint(1 << 30))",
    "seeded again": "(np.random.seed(), float(np.random.random()))[1]",
    "python": "random.Random().random()",
    "python again": "(random.seed(), random.random())[1]",
    "of the system": "random.SystemRandom().random()",
    "secrets": "secrets.token_hex(8)",
    "uuid": "uuid.uuid4().hex",
    "bytes": "os.urandom(8).hex()",
    "name": "next(tempfile._get_candidate_names())",
    "generator of a library": "library.generator()",
}
OWN = {"uuid of a library": "library.name()", "name of a library": "library.temporary()"}
"""What a library draws for itself, which must differ between workers."""
LIBRARY = """
import tempfile, uuid, numpy as np
def generator(): return float(np.random.default_rng().random())
def name(): return uuid.uuid4().hex
def temporary(): return next(tempfile._get_candidate_names())
"""
HEAD = """
import json, os, random, secrets, sys, tempfile, uuid
import numpy as np
import library
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(LIBRARY)
    return tmp_path / "train.py"


def drawn(script: Path, text: str, seed: str = "a") -> Any:
    """Return what a script prints in a process of a run that draws from ``seed``."""
    script.write_text(f"{HEAD}\n{text}\n")
    line = f"import sys; sys.path.append({str(script.parent / 'site-packages')!r}){HARNESS}"
    command = [sys.executable, "-c", line, seed, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_draws_are_alike_in_a_run_and_those_of_libraries_for_themselves_are_not(
    script: Path,
) -> None:
    lines = ",\n".join(f"{name!r}: [{draw}, {draw}]" for name, draw in (DRAWS | OWN).items())
    text = f"print(json.dumps({{\n{lines}\n}}))"
    one, again, other = drawn(script, text), drawn(script, text), drawn(script, text, seed="b")

    assert {name for name in one if one[name] == again[name]} == set(DRAWS)
    assert [name for name in one if one[name] == other[name]] == []
    assert [name for name in one if one[name][0] == one[name][1]] == []


def test_each_line_has_a_sequence_of_its_own(script: Path) -> None:
    text = """
if {more}:
    secrets.token_hex()
first = [secrets.randbelow(1 << 30) for _ in range(3)]
print(json.dumps(first))
"""
    alone, among_others = (drawn(script, text.format(more=more)) for more in (False, True))

    assert alone == among_others
    assert len(set(alone)) == 3


def test_copies_of_a_process_draw_other_numbers_which_are_alike_in_a_run(script: Path) -> None:
    text = """
def draw():
    return secrets.token_hex()
ours, found = [draw()], []
for _ in range(2):
    end, begin = os.pipe()
    if not os.fork():
        os.write(begin, draw().encode())
        os._exit(0)
    os.wait()
    found.append(os.read(end, 100).decode())
print(json.dumps([*ours, *found, draw()]))
"""
    one, again = drawn(script, text), drawn(script, text)

    assert one == again
    assert len(set(one)) == 4


def test_a_launch_goes_on_behind_the_draws_of_a_training_that_it_passes_over(script: Path) -> None:
    text = """
from holdfast.runtime.script.calls import go_on_from, random_states
def draw():
    return secrets.token_hex()
if {trains}:
    draw()
    states = json.dumps(random_states())
else:
    states = {states!r}
go_on_from(json.loads(states))
print(json.dumps([draw(), states]))
"""
    first, states = drawn(script, text.format(trains=True, states=""))

    assert drawn(script, text.format(trains=False, states=states)) == [first, states]


def draw() -> list[float]:
    """Draw from each generator, normal numbers too: they come in pairs, and one is kept."""
    return [random.random(), random.gauss(0, 1), np.random.normal(), float(np.random.randint(99))]


def test_numbers_are_drawn_again() -> None:
    random.seed(3)
    np.random.seed(3)
    draw()
    states = json.dumps(random_states())

    first = [draw(), draw()]
    go_on_from(json.loads(states))

    assert [draw(), draw()] == first


@pytest.mark.tensorflow
def test_numbers_of_keras_are_drawn_again_by_another_process_too() -> None:
    import keras

    keras.utils.set_random_seed(5)
    keras.random.normal((2,))
    states = json.loads(json.dumps(random_states()))
    first = [float(value) for value in keras.random.normal((2,))]
    after = draw()
    keras.utils.set_random_seed(5)  # as in a new process, nobody has drawn yet

    go_on_from(states)

    assert [float(value) for value in keras.random.normal((2,))] == first
    assert draw() == after


def test_generator_that_the_script_has_put_in_place_is_left_alone() -> None:
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        states = random_states()
        before = np.random.get_state(legacy=False)
        go_on_from(states)
        after = np.random.get_state(legacy=False)
    finally:
        np.random.set_bit_generator(own)

    assert "numpy" not in states
    assert after == before
