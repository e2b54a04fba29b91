"""Define the settings of the built-in search methods in an experiment file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo

from detcore.config import TrainingLength


class SingleSettings(BaseModel):
    """One trial."""

    max_length: TrainingLength


class GridSettings(SingleSettings):
    """Every combination of a grid of hyperparameters."""

    max_concurrent_trials: int = Field(
        default=16, ge=0, description="Maximum number of concurrent trials; 0 = no limit."
    )


class RandomSettings(GridSettings):
    """Trials with hyperparameters drawn at random."""

    max_trials: int = Field(ge=1, description="Total number of trials.")


class _HalvingSettings(RandomSettings):
    divisor: float = Field(
        default=4.0, gt=1, description="Inverse of the fraction of trials promoted to each rung."
    )
    stop_once: bool = Field(
        default=False, description="Decide only once per rung; stopped trials never continue."
    )


def _check_limit(rungs: int, info: ValidationInfo) -> int:
    limit = info.data.get("max_rungs", rungs)
    if rungs > limit:
        raise ValueError(
            f"a bracket of {rungs} rungs, but max_rungs is {limit}\n"
            f"raise max_rungs to {rungs}, or use fewer rungs"
        )
    return rungs


class AdaptiveSettings(_HalvingSettings):
    """Many short trials, the best of which continue (asynchronous successive halving)."""

    mode: Literal["conservative", "standard", "aggressive"] = Field(
        default="standard", description="How early trials are stopped."
    )
    max_rungs: int = Field(default=5, ge=1, description="Maximum number of rungs.")
    bracket_rungs: list[Annotated[int, Field(ge=1), AfterValidator(_check_limit)]] = Field(
        default=[], description="Number of rungs of each bracket; empty = chosen by 'mode'."
    )


class HalvingSettings(_HalvingSettings):
    """One bracket of asynchronous successive halving."""

    num_rungs: int = Field(ge=1, description="Number of rungs.")
