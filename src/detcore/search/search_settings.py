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
        default=16, ge=0, description="How many trials may run at one time; 0 = no limit."
    )


class RandomSettings(GridSettings):
    """Trials with hyperparameters drawn at random."""

    max_trials: int = Field(ge=1, description="How many trials to run in all.")


class _HalvingSettings(RandomSettings):
    divisor: float = Field(
        default=4.0, gt=1, description="One in this many trials is promoted to the next rung."
    )
    stop_once: bool = Field(
        default=False, description="Decide once per rung, and never continue a trial stopped there."
    )


def _check_limit(rungs: int, info: ValidationInfo) -> int:
    limit = info.data.get("max_rungs", rungs)
    if rungs > limit:
        raise ValueError(
            f"a bracket of {rungs} rungs, but max_rungs is {limit}\n"
            f"raise max_rungs to {rungs}, or take fewer rungs"
        )
    return rungs


class AdaptiveSettings(_HalvingSettings):
    """Many short trials of which the best are continued (asynchronous successive halving)."""

    mode: Literal["conservative", "standard", "aggressive"] = Field(
        default="standard", description="How early trials are stopped."
    )
    max_rungs: int = Field(default=5, ge=1, description="How often a trial is judged at most.")
    bracket_rungs: list[Annotated[int, Field(ge=1), AfterValidator(_check_limit)]] = Field(
        default=[], description="Rungs of each bracket; empty = chosen by 'mode'."
    )


class HalvingSettings(_HalvingSettings):
    """One bracket of asynchronous successive halving."""

    num_rungs: int = Field(ge=1, description="How often a trial is judged.")
