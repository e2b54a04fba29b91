"""Run a script of the corpus as a user does, and write digests of its final variables.

python start_script.py SCRIPT
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kill_points import prepare_kill

__all__ = ["digest_variables"]


def digest_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of the models, optimizers, averages and arrays among a script's variables."""
    digests = {}
    for name, value in variables.items():
        parts: list[bytes] = []
        is_object = not isinstance(value, type | types.ModuleType | types.FunctionType)
        if not name.startswith("_") and is_object and _add_state(value, parts):
            digests[name] = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    return digests


def _add_state(value: Any, parts: list[bytes]) -> bool:
    """Add the bytes of a value; return whether it holds arrays."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        parts.append(str(len(value)).encode())
        results = []
        for key, item in items:
            parts.append(str(key).replace(os.getcwd(), "").encode())
            results.append(_add_state(item, parts))
        return any(results)
    if hasattr(value, "get_weights") and hasattr(value, "layers"):
        return _add_state([*value.get_weights(), *_list_variables(value)], parts)
    if hasattr(value, "state_dict") and not hasattr(value, "dataset"):
        _add_state(value.state_dict(), parts)
        return True
    if hasattr(value, "get_params") and hasattr(value, "fit"):
        return _add_state({k: v for k, v in vars(value).items() if k.endswith("_")}, parts)
    if hasattr(value, "requires_grad"):
        value = value.detach().cpu().contiguous()
        value = value.float() if value.dtype.is_floating_point else value
    is_symbolic = type(value).__name__ == "KerasTensor"
    if hasattr(value, "dtype") and hasattr(value, "shape") and not is_symbolic:
        array = np.asarray(value)
        if array.dtype.hasobject:
            return False
        parts += [str(array.dtype).encode(), str(array.shape).encode(), array.tobytes()]
        return True
    if isinstance(value, bool | int | float | str | None):
        parts.append(repr(value).replace(os.getcwd(), "").encode())
    return False


def _list_variables(model: Any) -> list[Any]:
    """Return the variables of a Keras model's optimizer."""
    variables = getattr(getattr(model, "optimizer", None), "variables", [])
    return [np.asarray(value) for value in (variables() if callable(variables) else variables)]


def main() -> None:
    """Run the script, and write ``result.json`` to the working directory."""
    del sys.argv[0]
    if os.environ.get("CORPUS_ALONE"):
        from library_alone import replace_adapters

        replace_adapters(Path(sys.argv[0]).parent.name)
    prepare_kill()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    variables = runpy.run_path(sys.argv[0], run_name="__main__")
    Path("result.json").write_text(json.dumps(digest_variables(variables)))


if __name__ == "__main__":
    main()
