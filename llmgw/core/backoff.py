"""How long to wait before trying again."""

from __future__ import annotations

_MOST_DOUBLINGS = 62  # beyond this 2 ** n says nothing more and would overflow a float in the end


def full_jitter(failures: int, *, base: float, cap: float, unit: float) -> float:
    """Seconds to wait after `failures` failures in a row: uniform between 0 and `min(cap, base * 2 ** (failures - 1))`.

    `base` and `cap` are seconds. `unit` in [0, 1) is the caller's random number: the whole range is used ("full
    jitter"), so that a thousand nodes that went away together do not come back together (F25). No failure, no wait.
    """
    if not 0.0 <= unit < 1.0:
        raise ValueError(f"unit must lie in [0, 1), not {unit}")
    if failures <= 0:
        return 0.0
    return unit * min(cap, base * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
