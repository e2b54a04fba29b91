"""Settings under ``launcher`` in an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

# Options that the launcher sets itself, because it relies on their values.
_OWN_OPTIONS = (
    "--job-name", "-J", "--output", "-o", "--error", "-e", "--open-mode", "--signal", "--export",
    "--ntasks", "-n", "--distribution", "-m", "--requeue", "--no-requeue", "--array", "-a",
    "--dependency", "-d", "--wrap", "--wait", "-W", "--chdir", "-D",
)  # fmt: skip


def _check_text(value: object) -> object:
    """Return the text of a value, which must fit into one line of a batch script."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a string")
    text = str(value)
    if not text or not text.isprintable() or text != text.strip():
        raise ValueError(
            f"{text!r} does not fit into an #SBATCH line: expected one line of printable "
            "characters, without spaces at its ends"
        )
    return text


def _check_word(value: object) -> object:
    text = _check_text(value)
    if " " in str(text):
        raise ValueError(f"{text!r} contains a space. Write further options in launcher.lines")
    return text


_Word = Annotated[str, BeforeValidator(_check_word)]
_Line = Annotated[str, BeforeValidator(_check_text)]


class SlurmSettings(BaseModel):
    """Resources of trials, as written beside ``name: slurm`` in an experiment file.

    Attributes:
        partition: Partition of the jobs; None for Slurm's default.
        account: Account that is charged.
        time: Time limit of a job, such as ``"04:00:00"``. A longer trial continues in more jobs.
        memory: Memory per node, such as ``"16G"``.
        gpus: GPUs per slot.
        cpus_per_slot: CPUs per slot.
        nodes: Number of nodes that the slots of a trial are spread over; None lets Slurm choose.
        lines: More options of sbatch, one per item, such as ``"--constraint=a100"``.
        requeue: Whether the jobs may be requeued. Otherwise a trial continues in a new job that
            depends on the earlier one.
        signal_s: Seconds before the time limit at which a trial saves and ends. A longer time is
            used if the saves of the trial took more than half of it.
        shared_dir: Directory of event logs and messages that the compute nodes share with this
            machine. None: below ``DETCORE_HOME``.
        poll_s: Seconds between two queries of the states of jobs.
        lease_s: Seconds without the runner after which a trial saves and ends. None: it trains on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    partition: _Word | None = Field(default=None, description="Partition of the jobs.")
    account: _Word | None = Field(default=None, description="Account that is charged.")
    time: _Word | None = Field(default=None, description="Time limit of a job.")
    memory: _Word | None = Field(default=None, description="Memory per node.")
    gpus: int = Field(default=0, ge=0, description="GPUs per slot.")
    cpus_per_slot: int = Field(default=1, ge=1, description="CPUs per slot.")
    nodes: int | None = Field(default=None, ge=1, description="Number of nodes of a trial.")
    lines: list[_Line] = Field(default=[], description="More options of sbatch.")
    requeue: bool = Field(default=True, description="Whether the jobs may be requeued.")
    signal_s: int = Field(
        default=120, ge=10, description="Seconds before the time limit at which a trial saves."
    )
    shared_dir: Path | None = Field(
        default=None, strict=False, description="Directory of event logs on the compute nodes."
    )
    poll_s: float = Field(
        default=5.0, ge=0.1, description="Seconds between two queries of the states of jobs."
    )
    lease_s: float | None = Field(
        default=None, ge=2, description="Seconds without the run after which a trial ends."
    )

    @field_validator("lines")
    @classmethod
    def _check_lines(cls, lines: list[str]) -> list[str]:
        for line in lines:
            option = line.partition("=")[0].split(" ")[0]
            if not line.startswith("-"):
                raise ValueError(f"{line!r} is not an option. Write, for example, --qos=long")
            if option in _OWN_OPTIONS or (line[:2] in _OWN_OPTIONS and line[1] != "-"):
                raise ValueError(f"{line!r}: the launcher sets {option} itself. Remove the line")
        return lines

    @field_validator("shared_dir")
    @classmethod
    def _check_directory(cls, directory: Path | None) -> Path | None:
        if directory is not None and not directory.is_absolute():
            raise ValueError(f"{directory} is not an absolute path, which all nodes understand")
        return directory

    def list_options(self, slots: int) -> dict[str, str]:
        """Return the options of sbatch, each with the setting that it follows from.

        Args:
            slots: Number of workers of the trial.
        """
        values: Mapping[str, tuple[object, str]] = {
            "partition": (self.partition, "--partition={}"),
            "account": (self.account, "--account={}"),
            "time": (self.time, "--time={}"),
            "memory": (self.memory, "--mem={}"),
            "gpus": (self.gpus or None, "--gpus-per-task={}"),
            "cpus_per_slot": (self.cpus_per_slot, "--cpus-per-task={}"),
            "nodes": (self.nodes, "--nodes={}"),
        }
        options = {
            template.format(value): f"launcher.{name}"
            for name, (value, template) in values.items()
            if value is not None
        }
        options[f"--ntasks={slots}"] = "resources.slots_per_trial"
        lines = {line: f"launcher.lines.{number}" for number, line in enumerate(self.lines)}
        return {**options, **lines}
