"""Acceptance of experiments: checked as by ``detcore run``, and recorded once, with code."""

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
# Up to this many files are synced to the disk one by one.
_FEW_FILES = 500
_MAX_POINTS = 100_000
# A client waits 60 s for an answer.
_DEADLINE_S = 50.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission of an experiment.

    Attributes:
        text: The experiment file.
        name: Name of the file in messages about its mistakes.
        overrides: Settings by dotted name, from flags.
        environment: Settings from the user's variables.
        test_mode: Whether it is a smoke run.
        is_only_checked: Whether it is checked and not recorded.
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
    """Check an experiment, and record it in the queue with its code.

    It is for clients that send the code with the experiment file. They submit an experiment a
    second time if they receive no answer, so that recording has no deadline.

    Args:
        state: The server.
        requester: Token of the user, who becomes the experiment's owner.
        read: Returns the submission; called in a thread. Unless the experiment is only checked, it
            writes the code to `archive`.
        archive: The file for the code (tar, gzip), in an `incoming_folder`.
        limiter: How many submissions are handed in at once.

    Returns:
        The checked configuration, and the experiment's id; None if it was only to be checked.

    Raises:
        HTTPException: If the checks take too long (503).
        ConfigError: If the experiment file has mistakes; the message lists all.
        RunError: If it needs something that this installation cannot do.
        SearchError: If the search method cannot be made.
        StorageError: If its checkpoint storage does not work from here, or has no room.
        UnsafePathError: If the archive is refused.
    """

    def read_and_check() -> tuple[Submission, LoadedConfig, ExperimentConfig]:
        submission = read()
        return submission, *check(submission, state.settings)

    submission, loaded, config = await in_time(read_and_check, limiter)
    if submission.is_only_checked:
        return config, None

    def record() -> int:
        return take_in(
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
    """Run work in a thread, and wait for it as long as a client does.

    Work that takes longer continues and keeps its place in `limiter`, but the client does not
    receive its result.

    Args:
        work: Checks an experiment, or takes one in that is recorded once however often it is sent.
        limiter: How much of that may run at once.

    Raises:
        HTTPException: If it takes too long (503).
    """
    try:
        with anyio.fail_after(_DEADLINE_S):
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
    except TimeoutError:
        raise HTTPException(
            503,
            f"the server could not take the experiment in within {_DEADLINE_S:.0f} s: it is busy, "
            "its disk is slow, or the experiment file takes long to read.\n"
            "Hand it in again later.",
        ) from None


def check(
    submission: Submission, settings: ServerSettings
) -> tuple[LoadedConfig, ExperimentConfig]:
    """Check an experiment before anything of it is recorded.

    Returns:
        The experiment file, and the configuration to record.

    Raises:
        ConfigError: If the experiment file has mistakes; the message lists all.
        RunError: If it needs something that this installation cannot do.
        SearchError: If the search method cannot be made.
        StorageError: If its checkpoint storage does not work from here.
    """
    # A separate manager: managers are not thread-safe.
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
    """Refuse a grid with too many points: the server makes all of them at once."""
    if config.searcher.name != "grid":
        return
    sizes = [
        len(value.get("vals") or ()) or int(value.get("count") or 1)
        for _, value in ranges(config.hyperparameters)
    ]
    if math.prod(sizes) > _MAX_POINTS:
        raise RunError(
            f"the grid has {math.prod(sizes)} points, and this server takes at most "
            f"{_MAX_POINTS}.\nGive smaller counts, or search at random."
        )


def take_in(
    archive: Path,
    *,
    loaded: LoadedConfig,
    config: ExperimentConfig,
    test_mode: bool,
    user_id: int,
    submission_id: str,
    state: ServerState,
) -> int:
    """Record an experiment in the queue, unless that was done before; return its id.

    Its code is in place, on the disk, before the record is visible.

    Raises:
        UnsafePathError: If the archive is refused.
        StorageFullError: If there is no room for the code.
        FileNotFoundError: If the archive is gone: another try of the same submission removes it
            when it is done, and the server removes old archives.
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
            raise FileNotFoundError(f"{archive} is gone") from error
        raise StorageFullError(
            f"the code cannot be unpacked on the server: {error.strerror or error}.\n"
            "Its administrator has to make room in DETCORE_HOME. Nothing was recorded."
        ) from error


def _place_code(
    code: Path, environment: Environment, config: dict[str, Any], experiment_id: int
) -> str:
    """Move the code of a submission to its experiment's folder; return its path there."""
    folder = get_experiment_dir(environment, experiment_id)
    # Left by a server that was killed at this very point: the number was not used.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        code.rename(folder / _CODE)
        for changed in (folder, folder.parent):
            sync_path(changed)
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
