"""Format numbers, times and sizes for people."""

from __future__ import annotations

import datetime

__all__ = ["format_bytes", "format_duration", "format_number", "format_time"]


def format_number(value: object) -> str:
    """Return a metric's value: four significant digits for small floats, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def format_bytes(size: int | None) -> str:
    """Return a size such as ``1.5 MB`` (powers of 1000), ``-`` for None."""
    if size is None:
        return "-"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def format_duration(seconds: float | None) -> str:
    """Return a duration as ``1h 02m``, ``3m 05s`` or ``7s``, ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def format_time(moment: datetime.datetime | None) -> str:
    """Return a moment in this machine's time zone, ``-`` for None."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
