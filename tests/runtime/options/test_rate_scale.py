"""The learning rate of a large batch grows to its factor, and stays there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.options.job_options import RULES, RateScale, RateScaling, scale_of


def _scale(rule: str, factor: int, steps_per_epoch: int, epochs: int) -> RateScale:
    return RateScaling(rule, factor).over(steps_per_epoch, epochs)


_SCALES = st.builds(
    _scale,
    st.sampled_from(RULES),
    st.integers(1, 64),
    st.integers(1, 9),
    st.integers(1, 99),
)


@pytest.mark.parametrize(
    ("rule", "update", "factor"),
    [
        ("linear", 0, 1.0),
        ("linear", 25, 4.5),
        ("linear", 50, 8.0),
        ("linear", 5000, 8.0),
        ("sqrt", 50, math.sqrt(8)),
    ],
)
def test_factor_grows_over_five_epochs(rule: str, update: int, factor: float) -> None:
    scale = RateScaling(rule, 8).over(steps_per_epoch=10, epochs=90)

    assert scale.at(update) == pytest.approx(factor)


@given(_SCALES, st.integers(0, 1000))
def test_factor_never_falls_and_never_exceeds_the_rule(scale: RateScale, update: int) -> None:
    assert 1.0 <= scale.at(update) <= scale.at(update + 1) <= scale.factor
    assert scale.at(scale.warm_up_steps) == pytest.approx(scale.factor)


def test_scale_says_what_it_does() -> None:
    assert str(RateScaling("linear", 8).over(10, 2)) == "linear x8 over 20 steps"


@pytest.mark.parametrize(("rule", "factor"), [(None, 8), ("linear", 1)])
def test_nothing_is_scaled_without_a_rule_or_a_larger_batch(rule: str | None, factor: int) -> None:
    assert RateScaling.of(rule, factor) is None


def test_short_training_warms_up_until_its_end() -> None:
    scale = scale_of(RateScaling("linear", 4), steps_per_epoch=10, epochs=2)

    assert scale is not None
    assert scale.at(19) < 4.0
    assert scale.at(20) == pytest.approx(4.0)
    assert scale_of(None, steps_per_epoch=10, epochs=2) is None
