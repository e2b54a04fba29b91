"""Metrics of a trial in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from detcore.database import MetricRecord
from detcore_determined._routes._answers import Document, as_float

__all__ = ["summarize"]


def summarize(training: Iterable[MetricRecord], validation: Iterable[MetricRecord]) -> Document:
    """Return count, extremes, sum, mean and last value of each metric, as clients read them."""
    return {"avg_metrics": _group(training), "validation_metrics": _group(validation)}


def _group(records: Iterable[MetricRecord]) -> Document:
    found: Document = {}
    for record in records:
        for name, value in record.metrics.items():
            _add(found.setdefault(name, {"count": 0, "type": _type(value)}), value)
    for summary in found.values():
        if "sum" in summary:
            summary["mean"] = summary["sum"] / summary["count"]
    return found


def _add(summary: Document, value: Any) -> None:
    summary["last"] = value
    kind = _type(value)
    if kind != summary["type"]:
        summary["type"] = "string"
    summary["count"] += 1
    if kind != "number":
        return
    summary["sum"] = summary.get("sum", 0.0) + float(value)
    if not math.isnan(value):
        summary["min"] = min(summary.get("min", value), value)
        summary["max"] = max(summary.get("max", value), value)


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if as_float(value) is not None:
        return "number"
    if isinstance(value, list):
        return "array"
    if isinstance(value, dict):
        return "object"
    return "null" if value is None else "string"
