"""How a value is shown beside the limit that it is under or over."""

from __future__ import annotations


def shown_beside(value: float, limit: float) -> str:
    """Return a number with 4 digits, or as many as show on which side of a limit it is."""
    if isinstance(value, int) or value == limit:
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(
        text
        for text in texts
        if (float(text) < limit) == (value < limit) and (float(text) > limit) == (value > limit)
    )
