"""``detcore launch``: run a command as several workers."""

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
  0      all workers ended well
  2      the command line is wrong
  75     a worker wants to come back later, and none failed
  other  that of the worker that failed first; 128 + n: killed by signal n
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
    help="Whose variables tell a worker who it is, besides detcore's own.",
)
@click.option(
    "-n",
    "--num-workers",
    "num_workers",
    type=click.IntRange(min=1, max=65_536),
    metavar="N",
    help="How many workers.  [default with --hosts: all slots]",
)
@click.option("--hosts", metavar="NAME:SLOTS,...", help="Machines to use (with horovod).")
@click.option(
    "--network-interface",
    metavar="NAME",
    help="Which one leads to the other machines, the same on all.  [default: found out]",
)
@click.option(
    "--env",
    "exported",
    multiple=True,
    metavar="NAME",
    help="Pass a variable on to the hosts, besides the harmless ones; may be given again.",
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

    Each line that a worker prints begins with its rank. SIGINT, SIGTERM, SIGUSR1 and SIGQUIT are
    passed on; when one worker fails the rest are ended.
    """
    if not command:
        raise click.UsageError("there is no COMMAND to run, such as: -- python train.py")
    if hosts is None and (network_interface or exported):
        raise click.UsageError("--network-interface and --env belong to --hosts")
    from detcore.launch.command_job import run_on_hosts, run_workers

    # "python" means this environment's Python, whether it was activated or not.
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
        raise click.UsageError("give the number of workers: -n N")
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
    """Return the service that a launcher is named after; none for those that need none.

    Raises:
        UsageError: If there is no such launcher.
    """
    if launcher in _WITHOUT_SERVICE:
        return {}
    from detcore.launch.local_launcher import find_services

    found = find_services(disabled_plugins=obj.disabled, allowed_plugins=obj.allowed)
    if launcher in found:
        return {launcher: found[launcher]}
    names = ", ".join(map(repr, sorted({*_WITHOUT_SERVICE, "horovod", *found})))
    raise click.BadParameter(f"{launcher!r} is not one of {names}", param_hint="--launcher")


def _find_hosts_service(services: Mapping[str, RendezvousService], launcher: str) -> SupportsHosts:
    from detcore.launch.hosts import SupportsHosts

    service = services.get(launcher)
    if isinstance(service, SupportsHosts):
        return service
    raise click.UsageError(
        f"--hosts works with --launcher horovod, not with {launcher}.\n"
        "With PyTorch, run torchrun on each machine."
    )


def _find_program(name: str, search_path: str) -> str:
    found = shutil.which(name, path=search_path)
    if found is not None:
        return found
    if name.endswith(".py") and Path(name).is_file():
        raise click.UsageError(f"{name} is no program by itself; write: -- python {name}")
    hint = (
        "There is no such file, or it may not be executed."
        if "/" in name
        else "Give its path, or see to your PATH."
    )
    raise click.UsageError(f"no program is called {name!r}.\n{hint}")
