"""The one module that reads environment variables.

DETCORE_HOME
    Where records and default checkpoints live; default: the platform's user data directory.
DETCORE_DB
    SQLAlchemy URL of the record store; default: SQLite in ``DETCORE_HOME``.
DETCORE_MASTER, DET_MASTER, DET_MASTER_ADDR
    Address of a server that the client asks, the first that is set; default: the client reads the
    records itself.
DETCORE_TOKEN
    Proves to a server who asks. Set for the workers of a trial that report to one. Never kept,
    listed or logged.
DETCORE_USER, DET_USER
    Who asks a server, where nothing else says it; the first that is set.
DETCORE_PASSWORD, DET_PASS
    Password of that user, for where no token is at hand; the first that is set. Better log in
    (``detcore user login``), which keeps a token and no password.
DETCORE_MASTER_CERT, DET_MASTER_CERT_FILE
    File of the authorities (PEM) that a server's certificate is checked against, the first that is
    set; default: the system's.
DETCORE_PLUGINS
    Allow-list of plugin names, separated by commas; unset = all.
DETCORE_DISABLE_PLUGINS
    Plugin names to leave out, separated by commas.
DETCORE_CONFIG__SECTION__FIELD
    Sets a field of the experiment file, such as ``DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES``.
DETCORE_TRIAL_INFO
    Set by the runner for its workers: path of a JSON file that says which trial this is.
DETCORE_CHANNEL_FD
    Set by the launcher for its workers: one end of a socket pair, over which rank 0 talks to the
    runner. When the other end closes, the worker ends.
DETCORE_RANK, DETCORE_SIZE, DETCORE_LOCAL_RANK, DETCORE_LOCAL_SIZE, DETCORE_CROSS_RANK,
DETCORE_CROSS_SIZE
    Set by the launcher for each of several workers: its place among them.
DETCORE_FORK_TRIALS
    ``0``: each trial of a search imports its framework. Otherwise trials are forked from a process
    that has imported it.
DETCORE_GRACE_S
    Seconds between SIGTERM (or SIGUSR1) and the kill, where nothing more exact says so.
DETCORE_DELIVERY_WAIT_S
    How long the end of a trial, or of a run, waits for undelivered observer events, in seconds;
    default: 5. The remaining events are kept. See `detcore.plugins.delivery`.
SLURM_JOB_ID, SLURM_JOB_END_TIME, KUBERNETES_SERVICE_HOST
    Set by Slurm and Kubernetes: the system that ends this process, and (in seconds since 1970)
    when. See `detcore.core.PreemptContext`.
DETCORE_JOB_KEY
    Secret that the workers of one job share: tells jobs of one machine apart, and is proven by
    every connection between machines. See `detcore.distributed`. The launcher makes a new one.
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
    """The settings that detcore takes from environment variables; see the module's table."""

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
        environ: The variables; default: those of this process, read now.

    Raises:
        ConfigError: If ``DETCORE_GRACE_S`` is no number of seconds.
    """
    env = os.environ if environ is None else environ
    home = _home(env)
    allowed = env.get("DETCORE_PLUGINS")
    info, channel = env.get("DETCORE_TRIAL_INFO"), env.get("DETCORE_CHANNEL_FD")
    delivery_wait_s = _seconds("DETCORE_DELIVERY_WAIT_S", env)
    return Environment(
        home=home,
        database_url=_database_url(env.get("DETCORE_DB"), home),
        allowed_plugins=None if allowed is None else _names(allowed),
        disabled_plugins=_names(env.get("DETCORE_DISABLE_PLUGINS", "")),
        trial_info=Path(info) if info else None,
        channel_fd=int(channel) if channel else None,
        num_workers=int(env.get("DETCORE_SIZE") or 0) or 1,
        search_path=env.get("PATH", os.defpath),
        grace_s=_seconds("DETCORE_GRACE_S", env),
        forks_trials=env.get("DETCORE_FORK_TRIALS") != "0",
        delivery_wait_s=5.0 if delivery_wait_s is None else delivery_wait_s,
        is_slurm=bool(env.get("SLURM_JOB_ID")),
        slurm_end_time=_seconds("SLURM_JOB_END_TIME", env),
        is_kubernetes=bool(env.get("KUBERNETES_SERVICE_HOST")),
        master=_first(_MASTERS, env),
        master_certificate=_path(_first(_CERTIFICATES, env)),
        token=env.get("DETCORE_TOKEN") or None,
        user=_first(_USERS, env),
        password=_first(_PASSWORDS, env),
        config_overrides={k: v for k, v in env.items() if k.startswith("DETCORE_CONFIG__")},
    )


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of the named variables that are set, such as a launcher's rank variables."""
    return {name: os.environ[name] for name in names if name in os.environ}


def child_environment(
    variables: Mapping[str, str],
    *,
    defaults: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
) -> dict[str, str]:
    """Return this process's variables, changed for a process that it starts.

    Args:
        variables: Set, whatever they were.
        defaults: Set where they are not set.
        without: Left out.
    """
    left_out = frozenset(without)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**(defaults or {}), **kept, **variables}


def read_prefixed(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables whose names begin with one of several prefixes."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def change_environment(variables: Mapping[str, str], without: Iterable[str] = ()) -> None:
    """Change the variables of this process.

    Args:
        variables: Set, whatever they were.
        without: Removed first.
    """
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(variables)


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("DETCORE_HOME")
    if home:
        path = Path(home).expanduser().absolute()
        if ".." in path.parts:  # which no address of a checkpoint may have
            path = path.resolve()
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the folder DETCORE_HOME, {str(path)!r}, is not UTF-8.\n"
                "Records hold paths as text.\nGive it another name."
            ) from error
        return path
    import platformdirs

    return Path(platformdirs.user_data_dir("detcore", appauthor=False))


def _database_url(url: str | None, home: Path) -> str:
    if not url:
        return f"sqlite:///{_quoted(home / 'detcore.db')}"
    scheme, separator, path = url.partition(":///")
    if separator and scheme.startswith("sqlite") and path and not path.startswith((":", "/")):
        # A worker runs in another folder and must open the same file.
        return f"{scheme}:///{_quoted(Path.cwd())}/{path}"
    return url


def _quoted(path: Path) -> str:
    """Return a path for a URL, with the characters quoted that would end it there."""
    text = str(path)
    for character in "%?#":  # "%" first, because quoting the others adds it
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _first(names: Iterable[str], env: Mapping[str, str]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _seconds(name: str, env: Mapping[str, str]) -> float | None:
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
    return None  # another system's own business
