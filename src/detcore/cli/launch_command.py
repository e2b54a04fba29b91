"""``detcore launch``: run a command in several worker processes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.contract.launch import RendezvousService
    from detcore.launch.hosts import SupportsHosts


_WITHOUT_SERVICE = ("local", "torch")

_EXAMPLES = """
\b
Examples:
  detcore launch -n 4 -- python train.py
  detcore launch --launcher horovod -n 2 -- python train.py
  detcore launch --launcher horovod --hosts a:4,b:4 -- python train.py

\b
Exit codes:
  0      all workers succeeded
  2      invalid command line
  75     a worker requests to run again later, and no worker failed
  other  exit code of the first failed worker; 128 + n: killed by signal n
"""


@click.command(
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[--launcher local|horovod|torch] -n N [--hosts a:4,b:4] --",
)
@click.option(
    "--launcher",
    metavar="local|horovod|torch",
    default="local",
    show_default=True,
    help="Launcher whose environment variables the workers receive, besides detcore's.",
)
@click.option(
    "-n",
    "--num-workers",
    "num_workers",
    type=click.IntRange(min=1, max=65_536),
    metavar="N",
    help="Number of workers.  [default with --hosts: all slots]",
)
@click.option("--hosts", metavar="NAME:SLOTS,...", help="Hosts to use (with horovod).")
@click.option(
    "--network-interface",
    metavar="NAME",
    help="Network interface that reaches the other hosts, with the same name on all hosts.  "
    "[default: detected]",
)
@click.option(
    "--env",
    "exported",
    multiple=True,
    metavar="NAME",
    help="Environment variable to pass to the hosts (repeatable).",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.pass_obj
def launch(
    obj: CliContext,
    launcher: str,
    num_workers: int | None,
    hosts: str | None,
    network_interface: str | None,
    exported: tuple[str, ...],
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in several worker processes.

    Each output line starts with the rank of its worker. SIGINT, SIGTERM, SIGUSR1 and SIGQUIT are
    forwarded to the workers. If a worker fails, the other workers are ended.
    """
    if not command:
        raise click.UsageError("missing COMMAND, such as: -- python train.py")
    if hosts is None and (network_interface or exported):
        raise click.UsageError("--network-interface and --env require --hosts")
    from detcore.launch.command_job import run_on_hosts, run_workers

    # "python" is this environment's Python, even if the environment is not activated.
    search_path = f"{Path(sys.executable).parent}:{obj.environment.search_path}"
    line = [_find_program(command[0], search_path), *command[1:]]
    variables = {"PATH": search_path}
    services = _find_services(obj, launcher)
    if hosts is not None:
        code = run_on_hosts(
            line,
            service=_find_hosts_service(services, launcher),
            hosts=hosts,
            num_workers=num_workers,
            network_interface=network_interface,
            variables=variables,
            exported=exported,
            notice=_notice,
        )
    elif num_workers is None:
        raise click.UsageError("missing the number of workers: -n N")
    else:
        code = run_workers(
            line,
            num_workers=num_workers,
            services=services,
            torch=launcher == "torch",
            variables=variables,
            notice=_notice,
        )
    raise SystemExit(code)


def _notice(text: str) -> None:
    click.echo(f"detcore launch: {text}", err=True)


def _find_services(obj: CliContext, launcher: str) -> dict[str, RendezvousService]:
    """Return the rendezvous service of a launcher. Some launchers need no service.

    Raises:
        UsageError: If the launcher is unknown.
    """
    if launcher in _WITHOUT_SERVICE:
        return {}
    from detcore.launch.local_launcher import find_services

    services = find_services(disabled_plugins=obj.disabled, allowed_plugins=obj.allowed)
    if launcher in services:
        return {launcher: services[launcher]}
    names = ", ".join(map(repr, sorted({*_WITHOUT_SERVICE, "horovod", *services})))
    raise click.BadParameter(f"{launcher!r} is not one of {names}", param_hint="--launcher")


def _find_hosts_service(services: Mapping[str, RendezvousService], launcher: str) -> SupportsHosts:
    from detcore.launch.hosts import SupportsHosts

    service = services.get(launcher)
    if isinstance(service, SupportsHosts):
        return service
    raise click.UsageError(
        f"--hosts requires --launcher horovod, not {launcher}.\n"
        "For PyTorch, run torchrun on each host."
    )


def _find_program(name: str, search_path: str) -> str:
    program = shutil.which(name, path=search_path)
    if program is not None:
        return program
    if name.endswith(".py") and Path(name).is_file():
        raise click.UsageError(f"{name} is not executable; write: -- python {name}")
    hint = (
        "The file is missing or not executable."
        if "/" in name
        else "Give its path, or add its directory to PATH."
    )
    raise click.UsageError(f"program not found: {name!r}.\n{hint}")
