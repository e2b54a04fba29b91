"""Distinguish kinds of hooks."""

from __future__ import annotations

from typing import Any

from detcore_estimator._tf import tf1


def is_called_per_step(hook: Any) -> bool:
    """Whether a hook has anything to do before or after a run of the session.

    One that has not can be left out of the runs, which makes them faster.
    """
    base = tf1.train.SessionRunHook
    return any(
        getattr(getattr(hook, name), "__func__", None) is not getattr(base, name)
        for name in ("before_run", "after_run")
    )
