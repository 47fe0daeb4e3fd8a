"""The back-off: full jitter, bounded, whatever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.backoff import full_jitter


def test_no_failure_no_wait() -> None:
    assert full_jitter(0, base=0.5, cap=60, unit=0.99) == 0
    assert full_jitter(-1, base=0.5, cap=60, unit=0.99) == 0


def test_it_doubles_up_to_the_cap() -> None:
    assert [full_jitter(n, base=0.5, cap=60, unit=0.5) for n in (1, 2, 3, 7, 8, 9, 5000)] == [
        0.25,
        0.5,
        1.0,
        16.0,
        30.0,
        30.0,
        30.0,
    ]


@given(st.integers(), st.floats(0.001, 100), st.floats(0.001, 1000), st.floats(0, 1, exclude_max=True))
def test_bounds(failures: int, base: float, cap: float, unit: float) -> None:
    assert 0 <= full_jitter(failures, base=base, cap=cap, unit=unit) <= cap


@pytest.mark.parametrize("unit", [-0.1, 1.0, float("nan")])
def test_a_unit_that_is_none(unit: float) -> None:
    with pytest.raises(ValueError):
        full_jitter(1, base=1, cap=1, unit=unit)
