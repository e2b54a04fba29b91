"""Changing settings of an experiment that is resumed, where that cannot change its past."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.config import load_mapping
from detcore.contract.errors import ConfigError, RunError
from detcore.contract.values import ExperimentState, JSONValue
from detcore.masking import MASK, mask_config
from detcore.record_descriptions import flatten, visible_config
from detcore.records import restore_secrets, save_secrets
from detcore.run.named_parts import create_search_method
from detcore.search import Search, Validated, event_from_json

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.records import Database, ExperimentRecord


_METRIC = "searcher.metric"
_LENGTH = "searcher.max_length."
_STORAGE = "checkpoint_storage."
_KINDS = ("searcher.name", "checkpoint_storage.type")
_FIXED = "what was trained may depend on it"
# The other methods' proposals depend on the length.
_FIXED_LENGTH = ("single", "random", "grid")


def change_settings(
    record: ExperimentRecord,
    changes: Mapping[str, object],
    *,
    database: Database,
    environment: Environment,
    plugins: PluginManager,
) -> list[str]:
    """Change settings of an experiment, and record that; the caller holds its lock.

    Args:
        record: The experiment.
        changes: New values by dotted names, as ``--set`` gives them.
        database: Where it is recorded.
        environment: Its home has the secrets.
        plugins: Provide search methods and storage types.

    Returns:
        A line for each setting that has changed.

    Raises:
        ConfigError: If a new value cannot be used.
        RunError: If a change would contradict the training so far.
    """
    old = restore_secrets(environment.home, record.id, record.config).config
    before = flatten(old)
    try:
        loaded = load_mapping(
            old,
            overrides=changes,
            required=("entrypoint",),
            models=plugins.settings_models(),
        )
    except ConfigError:
        # With another search method or storage, the settings of the one before may be mistakes.
        name = next((name for name in _KINDS if name in changes), None)
        if name is None or changes[name] == before.get(name):
            raise
        raise RunError(_refused(name, _FIXED, record, changes, database)) from None
    new = loaded.config.model_dump(mode="json")
    after, shown = flatten(new), flatten(visible_config(new))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    events = [event_from_json(item or {}) for item in database.list_search_events(record.id)[1:]]
    has_reported = any(isinstance(event, Validated) for event in events)
    for name in names:
        reason = _refusal(name, before, after, shown, has_reported=has_reported)
        if record.state is ExperimentState.COMPLETED:
            reason = "the experiment is complete"
        if reason is not None:
            raise RunError(_refused(name, reason, record, changes, database))
    if not names:
        return []
    # The search must come out as it is logged, or the experiment could not be resumed any more.
    seed = loaded.config.reproducibility.experiment_seed
    Search.replay(create_search_method(loaded.config, plugins), events, seed=seed)
    save_secrets(environment.home, record.id, new)
    hidden = flatten(visible_config(old))
    told = {name: [hidden.get(name), shown.get(name)] for name in names}
    database.change_config(record.id, config=new, changes=told)
    return [f"{name}: {was!r} is now {now!r}" for name, (was, now) in told.items()]


def _refusal(
    name: str,
    before: Mapping[str, JSONValue],
    after: Mapping[str, JSONValue],
    shown: Mapping[str, JSONValue],
    *,
    has_reported: bool,
) -> str | None:
    """Return why a setting cannot be changed, or None."""
    if name in ("max_restarts", "hang_timeout_s"):
        return None
    if name.startswith(_STORAGE) and MASK in (shown.get(name), before.get(name)):
        return None
    if name == _METRIC:
        return "trials have reported it to the search" if has_reported else None
    if name.startswith(_LENGTH):
        if after["searcher.name"] not in _FIXED_LENGTH:
            return f"{after['searcher.name']} chooses the lengths of its trials by it"
        if has_reported:
            return "trials have been trained to the end"
        was, now = before.get(name), after.get(name)
        is_longer = isinstance(was, int) and isinstance(now, int) and now > was
        return None if is_longer else "it can only become longer, in the same unit"
    return _FIXED


def _refused(
    name: str,
    reason: str,
    record: ExperimentRecord,
    changes: Mapping[str, object],
    database: Database,
) -> str:
    sets = dict(changes)
    checkpoints = database.list_checkpoints(experiment_id=record.id, states=["COMPLETED"])
    origin = ""
    if checkpoints:
        latest = max(checkpoints, key=lambda each: (each.steps_completed, each.started_at))
        sets = {"searcher.source_checkpoint_uuid": latest.uuid, **sets}
        origin = " from its latest checkpoint"
        if any(each.startswith(_LENGTH) for each in changes):
            origin += " (it counts from 0, so searcher.max_length is the length to add)"
    flags = " ".join(_flag(key, value) for key, value in sets.items())
    return (
        f"{name} of experiment {record.id} cannot be changed: {reason}.\n"
        "An experiment that is resumed may get another max_restarts, a longer "
        "searcher.max_length, credentials of its checkpoint_storage and, before its first report, "
        "another searcher.metric.\n"
        f"Start a new experiment{origin}: detcore run CONFIG.yaml "
        f"{shlex.quote(record.model_dir)} {flags}"
    )


def _flag(name: str, value: object) -> str:
    """Return the option that gives a setting a value, without the value of a secret."""
    text = value if isinstance(value, str) else json.dumps(value)
    given: JSONValue = text
    for key in reversed(name.split(".")):
        given = {key: given}
    is_secret = mask_config(given) != given
    return f"--set {name}=..." if is_secret else f"--set {shlex.quote(f'{name}={text}')}"
