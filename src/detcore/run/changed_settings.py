"""Change settings of an experiment that is resumed, where they cannot affect its past."""

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
_FIXED = "the training so far may depend on it"
# Methods whose proposals do not depend on the length.
_FIXED_LENGTH = ("single", "random", "grid")


def change_settings(
    record: ExperimentRecord,
    changes: Mapping[str, object],
    *,
    database: Database,
    environment: Environment,
    plugins: PluginManager,
) -> list[str]:
    """Change settings of an experiment and record the changes. The caller holds its lock.

    Args:
        record: The experiment.
        changes: New values by dotted names, as passed with ``--set``.
        database: The records.
        environment: Its home directory contains the secrets.
        plugins: Provide search methods and storage types.

    Returns:
        A line for each changed setting.

    Raises:
        ConfigError: If a new value cannot be used.
        RunError: If a change would contradict the training so far.
    """
    old_config = restore_secrets(environment.home, record.id, record.config).config
    before = flatten(old_config)
    try:
        loaded = load_mapping(
            old_config,
            overrides=changes,
            required=("entrypoint",),
            models=plugins.settings_models(),
        )
    except ConfigError:
        # Settings of the previous search method or storage may be invalid now.
        name = next((name for name in _KINDS if name in changes), None)
        if name is None or changes[name] == before.get(name):
            raise
        raise RunError(_describe_refusal(name, _FIXED, record, changes, database)) from None
    new_config = loaded.config.model_dump(mode="json")
    after, visible = flatten(new_config), flatten(visible_config(new_config))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    events = [event_from_json(item or {}) for item in database.list_search_events(record.id)[1:]]
    has_reported = any(isinstance(event, Validated) for event in events)
    for name in names:
        reason = _find_refusal_reason(name, before, after, visible, has_reported=has_reported)
        if record.state is ExperimentState.COMPLETED:
            reason = "the experiment is complete"
        if reason is not None:
            raise RunError(_describe_refusal(name, reason, record, changes, database))
    if not names:
        return []
    # The search must replay as logged. Otherwise the experiment could not be resumed again.
    seed = loaded.config.reproducibility.experiment_seed
    Search.replay(create_search_method(loaded.config, plugins), events, seed=seed)
    save_secrets(environment.home, record.id, new_config)
    masked_before = flatten(visible_config(old_config))
    masked_changes = {name: [masked_before.get(name), visible.get(name)] for name in names}
    database.change_config(record.id, config=new_config, changes=masked_changes)
    return [f"{name}: {old!r} is now {new!r}" for name, (old, new) in masked_changes.items()]


def _find_refusal_reason(
    name: str,
    before: Mapping[str, JSONValue],
    after: Mapping[str, JSONValue],
    visible: Mapping[str, JSONValue],
    *,
    has_reported: bool,
) -> str | None:
    """Return why a setting cannot be changed, or None."""
    if name in ("max_restarts", "hang_timeout_s", "reproducibility.inexact_resume"):
        return None
    if name.startswith(_STORAGE) and MASK in (visible.get(name), before.get(name)):
        return None
    if name == _METRIC:
        return "trials have already reported it to the search" if has_reported else None
    if name.startswith(_LENGTH):
        if after["searcher.name"] not in _FIXED_LENGTH:
            return f"{after['searcher.name']} derives the lengths of its trials from it"
        if has_reported:
            return "trials have already been trained to the end"
        old_length, new_length = before.get(name), after.get(name)
        is_longer = (
            isinstance(old_length, int) and isinstance(new_length, int) and new_length > old_length
        )
        return None if is_longer else "it can only be increased, in the same unit"
    return _FIXED


def _describe_refusal(
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
        latest = max(checkpoints, key=lambda record: (record.steps_completed, record.started_at))
        sets = {"searcher.source_checkpoint_uuid": latest.uuid, **sets}
        origin = " from its latest checkpoint"
        if any(key.startswith(_LENGTH) for key in changes):
            origin += " (which counts from 0, so searcher.max_length is the additional length)"
    flags = " ".join(_format_set_option(key, value) for key, value in sets.items())
    allowed = (
        "When resuming, you can change max_restarts, hang_timeout_s, "
        "reproducibility.inexact_resume and the credentials of checkpoint_storage. Until a trial "
        "reaches the length that the search requested, you can also change searcher.metric, and "
        "increase searcher.max_length of single, random and grid.\n"
    )
    return (
        f"{name} of experiment {record.id} cannot be changed: {reason}.\n"
        f"{'' if record.state is ExperimentState.COMPLETED else allowed}"
        f"Start a new experiment{origin}:  detcore run CONFIG.yaml "
        f"{shlex.quote(record.model_dir)} {flags}"
    )


def _format_set_option(name: str, value: object) -> str:
    """Return the ``--set`` option for a value, without the value of a secret."""
    text = value if isinstance(value, str) else json.dumps(value)
    nested: JSONValue = text
    for key in reversed(name.split(".")):
        nested = {key: nested}
    is_secret = mask_config(nested) != nested
    return f"--set {name}=..." if is_secret else f"--set {shlex.quote(f'{name}={text}')}"
