"""Read and validate experiment files, and report every mistake at its position."""

from __future__ import annotations

from detcore.config.editor_schema import json_schema
from detcore.config.experiment_config import (
    RULES_LATER,
    ExperimentConfig,
    smoke_config,
    trial_seed,
)
from detcore.config.field_types import TrainingLength
from detcore.config.hyperparameters import ranges, resolve_constants
from detcore.config.loader import (
    ExperimentFileError,
    LoadedConfig,
    Origin,
    format_mapping,
    load_config,
    load_mapping,
    load_text,
    make_refusal_error,
)
from detcore.config.mistakes import LoadOptions
from detcore.config.overrides import parse_set_flags
from detcore.config.source_text import Diagnostic, Label, Span

__all__ = [
    "RULES_LATER",
    "Diagnostic",
    "ExperimentConfig",
    "ExperimentFileError",
    "Label",
    "LoadOptions",
    "LoadedConfig",
    "Origin",
    "Span",
    "TrainingLength",
    "format_mapping",
    "json_schema",
    "load_config",
    "load_mapping",
    "load_text",
    "make_refusal_error",
    "parse_set_flags",
    "ranges",
    "resolve_constants",
    "smoke_config",
    "trial_seed",
]  # fmt: skip
