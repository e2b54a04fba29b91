"""Environment variables by which the workers of one job find each other."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.contract.launch import RankPlace, Rendezvous, RendezvousService
from detcore.contract.values import GradientSettings
from detcore.environment import child_environment, read_variables
from detcore.launch._places import default_settings, outer_variables, place_ranks

if TYPE_CHECKING:
    from detcore.hooks import PluginManager


_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class LocalJob:
    """A job whose workers are all on this machine: its key, and how workers find each other.

    Every job has a new key, which is passed in the environment only.

    Args:
        size: Number of workers; >= 1.
        services: Run as long as the job, so that workers find each other.
        gradients: How the workers combine gradients, for the services.
    """

    def __init__(
        self,
        size: int,
        *,
        services: Mapping[str, RendezvousService] | None = None,
        gradients: GradientSettings | None = None,
    ) -> None:
        self._places = place_ranks(["here"] * size)
        self._gradients = gradients or GradientSettings()
        self._key = secrets.token_hex(32)
        self._opened: list[Rendezvous] = []
        with contextlib.ExitStack() as stack:
            for service in (services or {}).values():
                opened = service.open(self._places, service.make_store(self._places))
                stack.callback(opened.close)
                self._opened.append(opened)
            self._stack = stack.pop_all()

    def environment(self, rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a worker.

        Args:
            rank: Which one, ``0 <= rank < size``.
            variables: More variables; they take precedence.
        """
        place = self._places[rank]
        told = place_variables(place, self._key)
        for opened in self._opened:
            told.update(opened.variables(place, interface=_INTERFACE, gradients=self._gradients))
        return child_environment(
            {**told, **variables},
            defaults=default_settings(place.size),
            without=outer_variables(),
        )

    def close(self) -> None:
        """Release ports."""
        self._stack.close()


def place_variables(place: RankPlace, key: str) -> dict[str, str]:
    """Return the variables that tell a worker its place, and the key of its job.

    Args:
        place: Which worker.
        key: The job's secret.
    """
    numbers = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
    }
    told = {f"DETCORE_{name}": str(number) for name, number in numbers.items()}
    return {**told, "DETCORE_JOB_KEY": key}


def framework_variables(plugins: PluginManager) -> dict[str, str]:
    """Return the variables that frameworks need in their workers, without those the user has set.

    All frameworks are included, because only importing a trial's code shows which one it uses.
    """
    frameworks = plugins.frameworks().values()
    wanted = {name: value for framework in frameworks for name, value in framework.variables}
    given = read_variables(wanted)
    return {name: value for name, value in wanted.items() if name not in given}
