"""Define the searcher section: the search method, its length and its metric."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from detcore.config._fields import DUMP_ANY, Lenient, Name, Section, tagged
from detcore.config._length import TrainingLength, UnitlessLength

__all__ = [
    "RETIRED_SEARCHERS",
    "SEARCHERS",
    "PluginSearcher",
    "Searcher",
    "SearcherField",
]

_MaxLength = Annotated[
    UnitlessLength,
    Field(description="How long each trial trains at most. A bare number means batches."),
]
_MaxTrials = Annotated[int, Field(ge=1, description="How many trials to run in all.")]
_Concurrent = Annotated[
    int, Field(ge=0, description="How many trials may run at one time; 0 = no limit.")
]
_Divisor = Annotated[
    float, Field(gt=1, description="One in this many trials is promoted to the next rung.")
]
_StopOnce = Annotated[
    bool, Field(description="Decide once per rung, and never continue a trial stopped there.")
]


class _Common(Section):
    metric: Name = Field(description="The validation metric that ranks trials.")
    smaller_is_better: bool = Field(
        default=True, description="Whether lower values of it are better."
    )
    source_trial_id: int | None = Field(
        default=None, ge=1, description="Start from the latest checkpoint of this trial."
    )
    source_checkpoint_uuid: str | None = Field(
        default=None, min_length=1, description="Start from this checkpoint."
    )


class SingleSearcher(_Common):
    """One trial."""

    name: Literal["single"] = Field(description="One trial.")
    max_length: _MaxLength


class RandomSearcher(_Common):
    """Trials with hyperparameters drawn at random."""

    name: Literal["random"] = Field(description="Hyperparameters drawn at random.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16


class GridSearcher(_Common):
    """Every combination of a grid of hyperparameters."""

    name: Literal["grid"] = Field(description="Every combination of a grid.")
    max_length: _MaxLength
    max_concurrent_trials: _Concurrent = 16


class AdaptiveAshaSearcher(_Common):
    """Many short trials of which the best are continued (asynchronous successive halving)."""

    name: Literal["adaptive_asha"] = Field(
        description="Many short trials of which the best are continued."
    )
    max_length: _MaxLength
    max_trials: _MaxTrials
    mode: Literal["conservative", "standard", "aggressive"] = Field(
        default="standard", description="How early trials are stopped."
    )
    divisor: _Divisor = 4.0
    max_rungs: int = Field(default=5, ge=1, description="How often a trial is judged at most.")
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = Field(
        default=[], description="Rungs of each bracket; empty = chosen by 'mode'."
    )
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class AsyncHalvingSearcher(_Common):
    """One bracket of asynchronous successive halving."""

    name: Literal["async_halving"] = Field(
        description="One bracket of asynchronous successive halving."
    )
    max_length: _MaxLength
    max_trials: _MaxTrials
    num_rungs: int = Field(ge=1, description="How often a trial is judged.")
    divisor: _Divisor = 4.0
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class OptunaSearcher(_Common):
    """Trials whose hyperparameters Optuna suggests."""

    name: Literal["optuna"] = Field(description="Hyperparameters that Optuna suggests.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16
    sampler: str | dict[str, Any] = Field(
        default="TPESampler", description="An Optuna sampler: its name, or 'name' and arguments."
    )
    pruner: str | dict[str, Any] = Field(
        default="NopPruner", description="An Optuna pruner: its name, or 'name' and arguments."
    )
    pruning_period: int = Field(
        default=0,
        ge=0,
        description="Ask the pruner this often, in the unit of 'max_length'; 0 = only at the end.",
    )


class CustomSearcher(_Common):
    """A search method written by the user."""

    name: Literal["custom"] = Field(description="A search method of your own.")
    unit: Literal["batches", "records", "epochs"] | None = Field(
        default=None, description="Unit of the lengths that the search method gives."
    )


class PbtReplaceFunction(Section):
    """Which trials of a population are replaced."""

    truncate_fraction: float = Field(
        ge=0, le=0.5, description="This part of the population, the worst, is replaced by the best."
    )


class PbtExploreFunction(Section):
    """How a copied trial's hyperparameters change."""

    resample_probability: float = Field(
        ge=0, le=1, description="Probability of drawing a hyperparameter again."
    )
    perturb_factor: float = Field(
        ge=0, le=1, description="Otherwise it is multiplied by 1 plus or minus this."
    )


class PbtSearcher(_Common):
    """Population-based training."""

    name: Literal["pbt"] = Field(description="Population-based training.")
    population_size: int = Field(ge=1, description="How many trials train side by side.")
    num_rounds: int = Field(ge=1, description="How often the population is judged.")
    length_per_round: Annotated[
        TrainingLength, Field(description="How long each trial trains between two judgements.")
    ]
    replace_function: PbtReplaceFunction = Field(description="Which trials are replaced.")
    explore_function: PbtExploreFunction = Field(description="How hyperparameters change.")


class PluginSearcher(_Common, Lenient):
    """A searcher that a plugin provides; its own settings are passed on unchanged."""

    name: Name = Field(description="Name under which the plugin registers the searcher.")
    max_length: UnitlessLength | None = Field(
        default=None, description="How long each trial trains at most, if the method asks for it."
    )


SEARCHERS: dict[str, type[Section]] = {
    "single": SingleSearcher,
    "random": RandomSearcher,
    "grid": GridSearcher,
    "adaptive_asha": AdaptiveAshaSearcher,
    "async_halving": AsyncHalvingSearcher,
    "optuna": OptunaSearcher,
    "custom": CustomSearcher,
    "pbt": PbtSearcher,
}
RETIRED_SEARCHERS = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "async_halving",
}

Searcher = (
    SingleSearcher
    | RandomSearcher
    | GridSearcher
    | AdaptiveAshaSearcher
    | AsyncHalvingSearcher
    | OptunaSearcher
    | CustomSearcher
    | PbtSearcher
)
SearcherField = Annotated[
    Searcher,
    Field(discriminator="name"),
    tagged(
        "name",
        "searcher",
        SEARCHERS,
        other=PluginSearcher,
        retired=RETIRED_SEARCHERS,
    ),
    DUMP_ANY,
]
