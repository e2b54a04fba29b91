"""Read and validate the experiment file, and report every mistake at its position."""

from __future__ import annotations

from detcore.config._derived import smoke_config, trial_seed
from detcore.config._experiment import ExperimentConfig
from detcore.config._hyperparameters import ranges, resolve_constants
from detcore.config._loader import (
    ExperimentFileError,
    LoadedConfig,
    Origin,
    load_config,
    load_mapping,
    load_text,
    mapping_text,
)
from detcore.config._overrides import VARIABLE_PREFIX, parse_set_flags
from detcore.config._render import Role, render
from detcore.config._schema import json_schema
from detcore.config._secrets import (
    MASK,
    find_hidden,
    hide_lines,
    mask_code,
    mask_config,
    secret_values,
)
from detcore.config._source import Diagnostic, Label, Span

__all__ = [
    "MASK",
    "VARIABLE_PREFIX",
    "Diagnostic",
    "ExperimentConfig",
    "ExperimentFileError",
    "Label",
    "LoadedConfig",
    "Origin",
    "Role",
    "Span",
    "find_hidden",
    "hide_lines",
    "json_schema",
    "load_config",
    "load_mapping",
    "load_text",
    "mapping_text",
    "mask_code",
    "mask_config",
    "parse_set_flags",
    "ranges",
    "render",
    "resolve_constants",
    "secret_values",
    "smoke_config",
    "trial_seed",
]
