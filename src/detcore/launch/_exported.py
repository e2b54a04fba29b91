"""Which variables go to other machines.

``horovodrun`` puts all variables that it finds on command lines, where every user of a machine can
read them. So it finds those only that are known to hold no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from detcore.environment import child_environment
from detcore.errors import ConfigError

__all__ = ["exported_environment"]

_HARMLESS = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|PATH|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV"
    r"|CONDA_PREFIX|SSH_AUTH_SOCK|KRB5CCNAME|DET_CHIEF_IP"
    r"|DETCORE_(HOME|PLUGINS|DISABLE_PLUGINS)"
    r"|(PYTHON|HOROVOD_|NCCL_|GLOO_|TF_|XLA_|KERAS_|OMP_|KMP_|MKL_|OPENBLAS_|CUDA_|NVIDIA_)\w*)"
)
_JOB_KEY = "DETCORE_JOB_KEY"


def exported_environment(
    variables: Mapping[str, str], names: Iterable[str], without: Iterable[str]
) -> dict[str, str]:
    """Return the variables for horovodrun.

    Args:
        variables: Values that replace those of this process.
        names: More variables to pass on, requested by the user.
        without: Names of variables to leave out.

    Raises:
        ConfigError: If one of `names` is not set or seems to hold a secret.
    """
    found = child_environment(variables, without=without)
    kept = {
        name: value
        for name, value in found.items()
        if _HARMLESS.fullmatch(name) and not _is_secret(name, value)
    }
    for name in names:
        if name not in found:
            raise ConfigError(f"--env {name}: this variable is not set")
        value = found[name]
        if _is_secret(name, value):
            raise ConfigError(
                f"--env {name}: horovodrun would put its value on command lines, where every "
                "user of a machine can read it.\nPut it into a file on each machine instead."
            )
        kept[name] = value
    return kept


def _is_secret(name: str, value: str) -> bool:
    from detcore._secrets import mask_config

    return name == _JOB_KEY or mask_config({name: value}) != {name: value}
