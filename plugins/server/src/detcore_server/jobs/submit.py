"""Check submitted experiments like ``detcore run``, and record each once with its code."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from fastapi import HTTPException

from detcore.client.http import MAX_CONTEXT_BYTES, MAX_CONTEXT_ENTRIES
from detcore.config import load_text, ranges
from detcore.errors import RunError, StorageError, StorageFullError
from detcore.plugins import PluginManager
from detcore.records import save_secrets
from detcore.run import NullListener, RunSettings, check_experiment, get_experiment_dir
from detcore_server.jobs.unpack import UnpackLimits, sync_path, unpack
from detcore_server.jobs.uploads import incoming_folder

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig, LoadedConfig
    from detcore.environment import Environment
    from detcore_server.server_database import TokenRecord
    from detcore_server.server_settings import ServerSettings
    from detcore_server.server_state import ServerState


_Made = TypeVar("_Made")

_LIMITS = UnpackLimits(size_bytes=MAX_CONTEXT_BYTES, num_entries=MAX_CONTEXT_ENTRIES)
_CODE = "code"
# Up to this number, files are flushed to disk one by one.
_FEW_FILES = 500
_MAX_POINTS = 100_000
# Clients wait 60 s for a response.
_DEADLINE_S = 50.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission of an experiment.

    Attributes:
        text: Source of the experiment file.
        name: File name for messages.
        overrides: Settings by dotted name from the command line.
        environment: Settings from the user's environment variables.
        test_mode: Whether the experiment is a smoke test.
        is_only_checked: Whether to check the experiment without recording it.
    """

    text: str
    name: str = "config"
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    test_mode: bool = False
    is_only_checked: bool = False


async def accept_submission(
    state: ServerState,
    requester: TokenRecord,
    read: Callable[[], Submission],
    archive: Path,
    *,
    limiter: anyio.CapacityLimiter,
) -> tuple[ExperimentConfig, int | None]:
    """Check an experiment and queue it with its code.

    For clients that send the code together with the experiment file. They submit again if they
    receive no response, so recording has no deadline.

    Args:
        state: The server.
        requester: Token of the user who becomes the owner.
        read: Function that returns the submission, called in a thread. It also writes the code to
            `archive`, unless the experiment is only checked.
        archive: Path for the code archive (tar, gzip) in an `incoming_folder`.
        limiter: Limiter of concurrent submissions.

    Returns:
        The checked configuration, and the experiment's id or None if it was only checked.

    Raises:
        HTTPException: If the checks take too long (503).
        ConfigError: If the experiment file has errors. The message lists all of them.
        RunError: If the experiment requires an unavailable feature.
        SearchError: If the search method cannot be created.
        StorageError: If the checkpoint storage does not work from here or is full.
        UnsafePathError: If the archive is rejected.
    """

    def read_and_check() -> tuple[Submission, LoadedConfig, ExperimentConfig]:
        submission = read()
        return submission, *check(submission, state.settings)

    submission, loaded, config = await in_time(read_and_check, limiter)
    if submission.is_only_checked:
        return config, None

    def record() -> int:
        return queue_experiment(
            archive,
            loaded=loaded,
            config=config,
            test_mode=submission.test_mode,
            user_id=requester.user_id,
            submission_id=secrets.token_hex(16),
            state=state,
        )

    return config, await anyio.to_thread.run_sync(record, limiter=limiter)


async def in_time(work: Callable[[], _Made], limiter: anyio.CapacityLimiter) -> _Made:
    """Run a function in a thread, and wait for it as long as a client waits.

    A slower function continues and keeps its slot in `limiter`, but the client does not receive its
    result.

    Args:
        work: Function that checks a submission, or records it idempotently.
        limiter: Limiter of concurrent calls.

    Raises:
        HTTPException: If the function takes too long (503).
    """
    try:
        with anyio.fail_after(_DEADLINE_S):
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
    except TimeoutError:
        raise HTTPException(
            503,
            f"the server could not accept the experiment within {_DEADLINE_S:.0f} s. It is busy, "
            "its disk is slow, or the experiment file is large.\n"
            "Submit the experiment again later.",
        ) from None


def check(
    submission: Submission, settings: ServerSettings
) -> tuple[LoadedConfig, ExperimentConfig]:
    """Check an experiment before recording it.

    Returns:
        The loaded experiment file and the configuration to record.

    Raises:
        ConfigError: If the experiment file has errors. The message lists all of them.
        RunError: If the experiment requires an unavailable feature.
        SearchError: If the search method cannot be created.
        StorageError: If the checkpoint storage does not work from here.
    """
    # A separate manager, because managers are not thread-safe.
    plugins = PluginManager(
        settings.environment,
        disabled=settings.plugins.disabled,
        allowed=settings.plugins.allowed,
    )
    loaded = load_text(
        submission.text,
        name=submission.name,
        overrides=submission.overrides,
        environment=submission.environment,
        required=("entrypoint",),
        models=plugins.settings_models(),
    )
    if settings.launcher is not None and loaded.find_origins()["launcher"].source == "default":
        config = loaded.config.model_copy(update={"launcher": settings.launcher})
        loaded = dataclasses.replace(loaded, config=config)
    _check_grid(loaded.config)
    run_settings = RunSettings(
        environment=settings.environment, plugins=plugins, listener=NullListener()
    )
    return loaded, check_experiment(loaded, run_settings, test_mode=submission.test_mode)


def _check_grid(config: ExperimentConfig) -> None:
    """Reject a grid with too many points, because the server creates all points at once."""
    if config.searcher.name != "grid":
        return
    sizes = [
        len(value.get("vals") or ()) or int(value.get("count") or 1)
        for _, value in ranges(config.hyperparameters)
    ]
    if math.prod(sizes) > _MAX_POINTS:
        raise RunError(
            f"the grid has {math.prod(sizes)} points; the maximum of this server is "
            f"{_MAX_POINTS}.\nReduce the counts, or use random search."
        )


def queue_experiment(
    archive: Path,
    *,
    loaded: LoadedConfig,
    config: ExperimentConfig,
    test_mode: bool,
    user_id: int,
    submission_id: str,
    state: ServerState,
) -> int:
    """Queue an experiment unless it was queued before, and return its id.

    Its code is flushed to disk before the record becomes visible.

    Raises:
        UnsafePathError: If the archive is rejected.
        StorageFullError: If there is no space for the code.
        FileNotFoundError: If the archive was removed, by another attempt of the same submission or
            because it was too old.
    """
    environment, plain = state.settings.environment, config.model_dump(mode="json")
    try:
        with incoming_folder(environment) as incoming:
            unpack(archive, incoming / _CODE, _LIMITS)
            _sync_tree(incoming / _CODE)
            return state.database.submit_experiment(
                user_id=user_id,
                submission_id=submission_id,
                test_mode=test_mode,
                config=plain,
                config_text=loaded.text,
                place=functools.partial(_place_code, incoming / _CODE, environment, plain),
            )
    except StorageError:
        raise
    except OSError as error:
        if not archive.exists():
            raise FileNotFoundError(f"{archive} was removed") from error
        raise StorageFullError(
            f"the server cannot unpack the code: {error.strerror or error}.\n"
            "Nothing was recorded. Ask the administrator to free space in DETCORE_HOME."
        ) from error


def _place_code(
    code: Path, environment: Environment, config: dict[str, Any], experiment_id: int
) -> str:
    """Move the code of a submission to its experiment's directory, and return its path."""
    folder = get_experiment_dir(environment, experiment_id)
    # Left by a server that was killed at this point. The id was not used.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        code.rename(folder / _CODE)
        for directory in (folder, folder.parent):
            sync_path(directory)
        save_secrets(environment.home, experiment_id, config)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(folder / _CODE)


def _sync_tree(folder: Path) -> None:
    paths = [*folder.rglob("*"), folder]
    if len(paths) > _FEW_FILES:
        os.sync()
        return
    for path in paths:
        sync_path(path)
