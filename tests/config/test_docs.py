"""Test that docs/configuration.md names every field and shows real output."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest
from pydantic import BaseModel

from detcore.config import ExperimentConfig
from detcore.config.experiment_config import Optimizations, Profiling, Reproducibility, Resources
from detcore.config.hyperparameters import HYPERPARAMETER_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
SECTIONS = [ExperimentConfig, Optimizations, Profiling, Reproducibility, Resources]
MODELS = [*SECTIONS, *HYPERPARAMETER_TYPES.values()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_on_the_page(model: type[BaseModel]) -> None:
    check_fields(model)


def check_fields(model: type[BaseModel]) -> None:
    missing = [
        name for name in model.model_fields if f"`{name}" not in PAGE and f".{name}`" not in PAGE
    ]
    assert missing == []


def test_every_searcher_and_type_is_on_the_page(models: dict[str, dict[str, str]]) -> None:
    for name, target in {**models["searcher"], **models["checkpoint_storage"]}.items():
        assert f"| `{name}` |" in PAGE
        check_fields(pkgutil.resolve_name(target))
    for name in HYPERPARAMETER_TYPES:
        assert f"| `{name}` |" in PAGE
