"""The one module that reads environment variables.

DETCORE_HOME
    Directory of records and default checkpoints; default: the platform's user data directory.
DETCORE_DB
    SQLAlchemy URL of the record store; default: SQLite in ``DETCORE_HOME``.
DETCORE_MASTER, DET_MASTER, DET_MASTER_ADDR
    Address of the server for the client; the first variable that is set counts. Default: the client
    reads the records directly.
DETCORE_TOKEN
    Token for a server. Set for the workers of trials that report to a server. It is never stored,
    listed or logged.
DETCORE_USER, DET_USER
    User name for a server, if nothing else determines it; the first variable that is set counts.
DETCORE_PASSWORD, DET_PASS
    Password of this user, if no token is available; the first variable that is set counts. Prefer
    ``detcore user login``, which stores a token and no password.
DETCORE_MASTER_CERT, DET_MASTER_CERT_FILE
    File of certificate authorities (PEM) for the server's certificate; the first variable that is
    set counts. Default: the system's authorities.
DETCORE_PLUGINS
    Allow-list of plugin names, separated by commas; unset = all.
DETCORE_DISABLE_PLUGINS
    Names of disabled plugins, separated by commas.
DETCORE_CONFIG__SECTION__FIELD
    Sets a field of the experiment file, such as ``DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES``.
DETCORE_TRIAL_INFO
    Set by the runner for its workers: path of a JSON file that describes the trial.
DETCORE_CHANNEL_FD
    Set by the launcher for its workers: one end of a socket pair, over which rank 0 communicates
    with the runner. When the other end closes, the worker exits.
DETCORE_RANK, DETCORE_SIZE, DETCORE_LOCAL_RANK, DETCORE_LOCAL_SIZE, DETCORE_CROSS_RANK,
DETCORE_CROSS_SIZE
    Set by the launcher for each of several workers: its ranks.
DETCORE_FORK_TRIALS
    ``0``: each trial of a search imports its framework. Otherwise trials are forked from a process
    that has imported it.
DETCORE_GRACE_S
    Seconds between SIGTERM (or SIGUSR1) and the kill, if no more exact value is known.
DETCORE_DELIVERY_WAIT_S
    Seconds for which the end of a trial or run waits for undelivered observer events; default: 5.
    The remaining events are kept. See `detcore.plugins.delivery`.
SLURM_JOB_ID, SLURM_JOB_END_TIME, KUBERNETES_SERVICE_HOST
    Set by Slurm and Kubernetes: the system that ends this process, and the time at which it does so
    (in seconds since 1970). See `detcore.core.PreemptContext`.
DETCORE_JOB_KEY
    Secret that the workers of one job share. It separates jobs on one machine, and every connection
    between machines must prove it. The launcher creates it. See `detcore.distributed`.
DET_CHIEF_IP, DETCORE_CHIEF_PORT
    Set by launchers of several machines: address of rank 0's machine, and the port on which rank 0
    listens.

The variables that launchers set for ranks are listed in `detcore.distributed`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from detcore.contract.errors import ConfigError

__all__ = [
    "Environment", "change_environment", "child_environment", "read_environment", "read_prefixed",
    "read_variables",
]  # fmt: skip

_MASTERS = ("DETCORE_MASTER", "DET_MASTER", "DET_MASTER_ADDR")
_USERS = ("DETCORE_USER", "DET_USER")
_PASSWORDS = ("DETCORE_PASSWORD", "DET_PASS")
_CERTIFICATES = ("DETCORE_MASTER_CERT", "DET_MASTER_CERT_FILE")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings that detcore reads from environment variables; see the module's table."""

    home: Path
    database_url: str
    allowed_plugins: frozenset[str] | None
    disabled_plugins: frozenset[str]
    trial_info: Path | None
    channel_fd: int | None
    num_workers: int
    search_path: str
    config_overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grace_s: float | None = None
    forks_trials: bool = True
    delivery_wait_s: float = 5.0
    is_slurm: bool = False
    slurm_end_time: float | None = None
    is_kubernetes: bool = False
    master: str | None = None
    master_certificate: Path | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    user: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the variables above.

    Args:
        environ: The variables; default: the current variables of this process.

    Raises:
        ConfigError: If a duration is not a number of seconds, or a path is not UTF-8.
    """
    env = os.environ if environ is None else environ
    home = _find_home(env)
    allowed = env.get("DETCORE_PLUGINS")
    info, channel = env.get("DETCORE_TRIAL_INFO"), env.get("DETCORE_CHANNEL_FD")
    delivery_wait_s = _read_seconds("DETCORE_DELIVERY_WAIT_S", env)
    return Environment(
        home=home,
        database_url=_find_database_url(env.get("DETCORE_DB"), home),
        allowed_plugins=None if allowed is None else _split_names(allowed),
        disabled_plugins=_split_names(env.get("DETCORE_DISABLE_PLUGINS", "")),
        trial_info=Path(info) if info else None,
        channel_fd=int(channel) if channel else None,
        num_workers=int(env.get("DETCORE_SIZE") or 0) or 1,
        search_path=env.get("PATH", os.defpath),
        grace_s=_read_seconds("DETCORE_GRACE_S", env),
        forks_trials=env.get("DETCORE_FORK_TRIALS") != "0",
        delivery_wait_s=5.0 if delivery_wait_s is None else delivery_wait_s,
        is_slurm=bool(env.get("SLURM_JOB_ID")),
        slurm_end_time=_read_seconds("SLURM_JOB_END_TIME", env),
        is_kubernetes=bool(env.get("KUBERNETES_SERVICE_HOST")),
        master=_find_first(_MASTERS, env),
        master_certificate=_read_path(_find_first(_CERTIFICATES, env)),
        token=env.get("DETCORE_TOKEN") or None,
        user=_find_first(_USERS, env),
        password=_find_first(_PASSWORDS, env),
        config_overrides={k: v for k, v in env.items() if k.startswith("DETCORE_CONFIG__")},
    )


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the named variables that are set, such as a launcher's rank variables."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(
    variables: Mapping[str, str],
    *,
    defaults: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
) -> dict[str, str]:
    """Return this process's variables, changed for a process that it starts.

    Args:
        variables: Variables to set.
        defaults: Variables to set unless this process has them.
        without: Variables to leave out.
    """
    excluded = frozenset(without)
    inherited = {name: value for name, value in os.environ.items() if name not in excluded}
    return {**(defaults or {}), **inherited, **variables}


def read_prefixed(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables whose names start with one of several prefixes."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def change_environment(variables: Mapping[str, str], without: Iterable[str] = ()) -> None:
    """Change the variables of this process.

    Args:
        variables: Variables to set.
        without: Variables to remove first.
    """
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(variables)


def _find_home(env: Mapping[str, str]) -> Path:
    home = env.get("DETCORE_HOME")
    if home:
        path = Path(home).expanduser().absolute()
        if ".." in path.parts:  # which checkpoint URLs may not contain
            path = path.resolve()
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the directory DETCORE_HOME, {str(path)!r}, is not valid UTF-8.\n"
                "Records store paths as strings.\nUse a directory with a different name."
            ) from error
        return path
    import platformdirs

    return Path(platformdirs.user_data_dir("detcore", appauthor=False))


def _find_database_url(url: str | None, home: Path) -> str:
    if not url:
        return f"sqlite:///{_quote_path(home / 'detcore.db')}"
    scheme, separator, path = url.partition(":///")
    if separator and scheme.startswith("sqlite") and path and not path.startswith((":", "/")):
        # A worker runs in a different directory and must open the same file.
        return f"{scheme}:///{_quote_path(Path.cwd())}/{path}"
    return url


def _quote_path(path: Path) -> str:
    """Return a path for a URL, with the characters quoted that would end the path."""
    text = str(path)
    for character in "%?#":  # "%" first, because quoting the others adds it
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _find_first(names: Iterable[str], env: Mapping[str, str]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _read_path(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _split_names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _read_seconds(name: str, env: Mapping[str, str]) -> float | None:
    text = env.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    if name.startswith("DETCORE_"):
        raise ConfigError(
            f"the variable {name} is {text!r}; expected a number of seconds, 0 or more.\n"
            "Correct it, or unset it."
        )
    return None  # an invalid variable of Slurm is ignored
