"""The parameters of an optimizer by name: groups that were added during training are restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidExperimentError


def name_groups(optimizer: Any, models: Sequence[Any]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer.

    Raises:
        InvalidExperimentError: If a parameter belongs to none of the models.
    """
    names = {id(each): name for name, each in _name_parameters(models).items()}
    groups: list[list[str]] = []
    for index, group in enumerate(optimizer.param_groups):
        unknown = [each for each in group["params"] if id(each) not in names]
        if unknown:
            shapes = ", ".join(str(tuple(each.shape)) for each in unknown[:3])
            raise InvalidExperimentError(
                f"{len(unknown)} parameters in group {index} of {type(optimizer).__name__} belong "
                f"to no model that is saved (shape: {shapes}).\n"
                "Checkpoints would not contain them, so training could not be resumed.\n"
                "Make them parameters of the model: assign the module that they belong to, or an "
                "nn.Parameter, to an attribute of the model in its __init__."
            )
        groups.append([names[id(each)] for each in group["params"]])
    return groups


def restore_groups(optimizer: Any, groups: list[list[str]], models: Sequence[Any]) -> None:
    """Give an optimizer the groups of parameters that `name_groups` returned.

    Raises:
        InvalidCheckpointError: If a model has no such parameter.
    """
    parameters = _name_parameters(models)
    missing = [name for names in groups for name in names if name not in parameters]
    if missing:
        raise InvalidCheckpointError(
            f"{type(optimizer).__name__} of the checkpoint trains {', '.join(missing[:3])}, which "
            "the model does not have.\n"
            "Use the code that the checkpoint was made with, or start a new trial."
        )
    del optimizer.param_groups[len(groups) :]
    for group, names in zip(optimizer.param_groups, groups, strict=False):
        group["params"] = [parameters[name] for name in names]
    for names in groups[len(optimizer.param_groups) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in names]})


def select_moments(
    optimizer: Any, state: Mapping[str, Any], groups: list[list[str]], models: Sequence[Any]
) -> dict[str, Any]:
    """Return the part of an optimizer's state that belongs to the parameters of another one.

    Args:
        optimizer: The other one, whose settings the result has.
        state: The state, from ``state_dict``.
        groups: The names of the parameters of the state, from `name_groups`.
        models: The models whose parameters the other one trains.
    """
    numbers = {name: i for i, name in enumerate(n for names in groups for n in names)}
    own_names = [name for names in name_groups(optimizer, models) for name in names]
    moments = {
        index: state["state"][numbers[name]]
        for index, name in enumerate(own_names)
        if numbers.get(name) in state["state"]
    }
    return {**state, "state": moments, "param_groups": optimizer.state_dict()["param_groups"]}


def _name_parameters(models: Sequence[Any]) -> dict[str, Any]:
    return {
        f"model-{index}.{name}": parameter
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }
