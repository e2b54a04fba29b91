"""The action that an experiment asks for when one of its trials fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from detcore._distributions import describe_missing
from detcore.contract.errors import DetcoreError, RunError
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.hooks import PluginManager, TrialFailure
    from detcore.runner._listener import RunListener

__all__ = ["act_on_failure", "find_failure_action"]

_DISTRIBUTIONS = {"bundle": "detcore-replay"}


def find_failure_action(
    name: str | None, plugins: PluginManager
) -> Callable[[TrialFailure], str | None] | None:
    """Return the action for trials that fail; None if the experiment names no action.

    Args:
        name: ``on_failure`` of the experiment file.
        plugins: Provide actions.

    Raises:
        RunError: If no installed plugin has the action, or it cannot be imported.
    """
    if name is None:
        return None
    actions = plugins.failure_actions()
    if name not in actions:
        if name in _DISTRIBUTIONS:
            raise RunError(describe_missing(_DISTRIBUTIONS[name], needed_by=f"on_failure: {name}"))
        raise RunError(
            f"on_failure is {name!r}, and no installed plugin has that action.\n"
            f"Actions here: {', '.join(sorted(actions)) or 'none'}.\n"
            "Others come with plugins: detcore plugins list."
        )
    function = actions[name].function
    try:
        action: Callable[[TrialFailure], str | None] = import_object(function)
    except (ImportError, AttributeError) as error:
        raise RunError(f"on_failure: {name} ({function}) cannot be imported: {error}") from error
    return action


def act_on_failure(failure: TrialFailure, plugins: PluginManager, listener: RunListener) -> None:
    """Call the action that the experiment of a failed trial names; show its text or its error."""
    name = failure.trial.config.get("on_failure")
    try:
        action = find_failure_action(name, plugins)
        text = action(failure) if action is not None else None
    except Exception as error:  # noqa: BLE001  (a plugin's, which must not end the other trials)
        kind = "" if isinstance(error, DetcoreError) else f"{type(error).__name__}: "
        text = f"on_failure: {name} failed: {kind}{error}"
    if text:
        listener.notice(f"trial {failure.trial.trial_id}: {text}")
