"""Read and validate the experiment file, and report every mistake at its position."""

from __future__ import annotations

from detcore.config._check import LoadOptions
from detcore.config._experiment import (
    RULES_LATER,
    ExperimentConfig,
    smoke_config,
    trial_seed,
)
from detcore.config._fields import TrainingLength
from detcore.config._hyperparameters import ranges, resolve_constants
from detcore.config._loader import (
    ExperimentFileError,
    LoadedConfig,
    Origin,
    load_config,
    load_mapping,
    load_text,
    mapping_text,
    refusal,
)
from detcore.config._overrides import parse_set_flags
from detcore.config._schema import json_schema
from detcore.config._source import Diagnostic, Label, Span

__all__ = [
    "RULES_LATER", "Diagnostic", "ExperimentConfig", "ExperimentFileError", "Label", "LoadOptions",
    "LoadedConfig", "Origin", "Span", "TrainingLength", "json_schema", "load_config",
    "load_mapping", "load_text", "mapping_text", "parse_set_flags", "ranges", "refusal",
    "resolve_constants", "smoke_config", "trial_seed",
]  # fmt: skip
