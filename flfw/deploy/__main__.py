"""A federation of real clients: ``python -m flfw.deploy init|up|status|down|renew DIR``, and ``hash``.

init    makes certificates, keys, a folder a site, and scripts with what is to be run where
up      starts the server and all sites on this machine; those that are at work already are left alone
status  says what is at work, and what is spent of each site's budget
down    ends the sites, then the server; what they keep stays, unless --purge removes what ended runs left
renew   makes a new key and certificate for the server, which it uses from its next start
hash    prints the SHA-256 of this code as an app, by which a site's policy accepts it
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, get_args

from flfw import plugins
from flfw.deploy import files
from flfw.deploy.files import make, renew, require_new
from flfw.deploy.leftovers import ALSO, plan
from flfw.deploy.node_config import is_another_policy, note_policy, spent
from flfw.deploy.policy import Policy, Reasons
from flfw.dp.budget import METRICS
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment, registered_nodes, registration_file, transport
from flfw.engines.superlink import bundle_hash
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment
from flfw.files.exit_code import exit_code
from flfw.files.folders import in_units
from flfw.files.parser import Parser
from flfw.privacy.claims import Unit

_UP_S = 120.0
_AGAIN_S = 5.0
_ASKED = ("epsilon", "delta", "unit", "patient_examples", "min_examples", "error_detail")  # of init, for each policy
_NETWORK = ("extractor.*", "classifier.*")  # all of a network: a policy with these patterns lets nothing else leave
_JOINED, _THERE_ALREADY, _SAID = b"SuperNode ID: ", b"[code: 2004]", re.compile(rb"\[code: \d+\].*")


def main(arguments: Sequence[str], program: str = "python -m flfw.deploy") -> int:
    """Run a command; return 2 for bad input and 1 for a failed start, with one line on stderr.

    Args:
        arguments: words behind the program's name.
        program: how it was called, for messages.
    """
    return exit_code(program.removeprefix("python -m "), lambda: _do(arguments, program))


def _do(arguments: Sequence[str], program: str) -> int:
    args = _parser(program).parse_args(arguments, argparse.Namespace(program=program))
    return _COMMANDS[args.command](args)


def _init(args: argparse.Namespace) -> int:
    for method in args.methods.split(","):
        if ":" not in method:
            plugins.require_known(plugins.METHOD, method)
    from flfw.task.method import Method  # with PyTorch, without which the other commands are quick

    ports = (args.port, args.control_port, args.site_port)
    layout = FederationLayout(args.folder.absolute(), args.clients, args.host, args.listen, *ports)
    uploads: dict[str, None] = {}
    for method in args.methods.split(","):
        cls = plugins.load_class(plugins.METHOD, method, Method)
        uploads |= dict.fromkeys(_NETWORK if tuple(cls.uploads) == ("*",) else cls.uploads)
    budget: dict[str, Any] = {name: getattr(args, name) for name in _ASKED}
    budget["metrics"] = args.metrics or ("all" if args.epsilon == inf else "none")
    foreign = [name for name in args.methods.split(",") if ":" in name]
    budget["allowed_plugins"] = tuple(dict.fromkeys([*foreign, *args.plugins]))
    policy = Policy(("0" * 64,), tuple(uploads), args.max_upload_mb, **budget)
    require_new(layout.folder)
    # Building the app takes seconds: after all checks.
    make(layout, replace(policy, allowed_apps=(bundle_hash(),)).text())
    way = f"{transport()} with TLS and a key a site"
    print(f"{layout.folder}: {layout.clients} sites, server at {layout.host}, by {way}")
    print(f"policies          let the uploads of {args.methods.replace(',', ', ')} leave; of others: --methods")
    print(f"on this machine   {args.program} up {args.folder}")
    print(f"on several        {layout.folder / 'start'} has what to run where")
    return 0


def _up(args: argparse.Namespace) -> int:
    up(FederationLayout.read(args.folder))
    return _status(args)


def up(layout: FederationLayout) -> None:
    """Start the server and the sites that are not running.

    Raises:
        RunError: something did not start.
    """
    folder = layout.superlink
    (folder / "home" / "config.toml").write_text(layout.connection)  # the folder may have been moved
    processes.start(layout.superlink_command(), folder, "superlink", environment(folder / "home"))
    _wait_until_up(layout)
    _register(layout)
    absent = [n for n in range(layout.clients) if processes.alive(layout.site(n), "supernode") is None]
    _wait_until_joined(layout, {number: _start_site(layout, number) for number in absent})


def _start_site(layout: FederationLayout, number: int) -> int:
    """Start a site; return the size of its log before the start."""
    site = layout.site(number)
    before = processes.log_size(site, "supernode")
    note_policy(site)
    processes.start(layout.supernode_command(number), site, "supernode", environment(site / "home"))
    return before


def _wait_until_joined(layout: FederationLayout, started: dict[int, int]) -> None:
    """Wait for sites; ``started`` maps each site to the size of its log before the start.

    Flower's server counts a killed site as running for up to a minute, and admits no second one in that time.
    """
    deadline = time.monotonic() + _UP_S
    while started:
        time.sleep(0.2)
        for number, before in list(started.items()):
            site = layout.site(number)
            new = (site / "supernode.log").read_bytes()[before:]
            late = time.monotonic() > deadline
            if _JOINED in new:
                del started[number]
            elif processes.alive(site, "supernode") is None:
                if _THERE_ALREADY not in new or late:
                    reason = _SAID.search(new)
                    why = reason[0].decode() if reason else processes.last_line(site, "supernode")
                    raise RunError(f"Site {number} did not start: {why}")
                time.sleep(_AGAIN_S)
                started[number] = _start_site(layout, number)
            elif late:
                log = site / "supernode.log"
                raise RunError(f"Site {number} did not reach the server within {_UP_S:.0f} s; see {log}.")


def _wait_until_up(layout: FederationLayout) -> None:
    deadline = time.monotonic() + _UP_S
    addresses = [(layout.control[1], layout.control_port)]
    if transport() == "gRPC":
        addresses.append(("127.0.0.1" if layout.listen == "0.0.0.0" else layout.listen, layout.port))
    while time.monotonic() < deadline:
        if processes.alive(layout.superlink, "superlink") is None:
            message = processes.last_line(layout.superlink, "superlink")
            raise RunError(f"Flower's SuperLink did not start: {message}")
        if all(processes.listens(*address) for address in addresses):
            return
        time.sleep(0.1)
    raise RunError(f"Flower's SuperLink did not start within {_UP_S:.0f} s; see {layout.superlink / 'superlink.log'}.")


def _register(layout: FederationLayout) -> None:
    """Register the public keys of the sites at the server; once, since the server keeps them."""
    variables = environment(layout.superlink / "home")
    known = registered_nodes(layout.folder, layout.clients).values()
    for number in range(layout.clients):
        if number in known:
            continue
        command = [*layout.register_command(number), "--format", "json"]
        limit = {"timeout": _UP_S, "cwd": layout.superlink / "neutral"}
        try:
            result = subprocess.run(command, env=variables, capture_output=True, text=True, **limit)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"The server did not take the key of site {number} within {_UP_S:.0f} s.") from error
        try:
            answer = json.loads(result.stdout)
        except ValueError:
            answer = {"success": False, "error-message": (result.stderr or result.stdout).strip()}
        if not answer.get("success"):
            raise RunError(f"The server does not take the key of site {number}: {answer.get('error-message')}")
        registration_file(layout.folder, number).write_text(f"{answer['node-id']}\n")


def _status(args: argparse.Namespace) -> int:
    layout = FederationLayout.read(args.folder)
    ends = _certified_until(layout)
    print(f"transport   {transport()} with TLS (certificate until {ends:%Y-%m-%d}), a key a site")
    parts = [("superlink", layout.superlink, f"sites {layout.host}:{layout.sites_port}, flwr :{layout.control_port}")]
    parts += [("supernode", layout.site(number), f"site {number}") for number in range(layout.clients)]
    missing = 0
    for name, folder, words in parts:
        pid = processes.alive(folder, name)
        missing += pid is None
        state = f"process {pid}" if pid else f"not at work ({processes.last_line(folder, name)})"
        print(f"{name:<11} {words}: {state}")
    for number in range(layout.clients):
        for line in _spent(layout.site(number), number):
            print(line)
    return 1 if missing else 0


def _certified_until(layout: FederationLayout) -> datetime:
    path = layout.superlink / "server.pem"
    if not path.is_file():
        raise InputError(f"Expected the server's certificate in {path}, got none; restore it or run renew.")
    return files.ends(path.read_bytes())


def _spent(site: Path, number: int) -> Iterator[str]:
    """Yield a line on the spent part of each of a site's limits, and on a policy that does not hold yet."""
    file = site / "policy.toml"
    if file.is_file() and processes.changed_since_start(site, "supernode", file):
        yield f"policy      site {number}: {file} was written after the site's start, and holds from its next one"
    elif processes.alive(site, "supernode") and is_another_policy(site):
        yield f"policy      site {number}: {file} is not the one of the site's start, and holds from its next one"
    for line in spent(Policy.read(file), site) if file.is_file() else ():
        kind, _, words = line.partition(" ")
        yield f"{kind:<11} site {number}: {words}"


def _down(args: argparse.Namespace) -> int:
    layout = FederationLayout.read(args.folder)
    only = "--purge with --older-than, --also and --dry-run"
    require(args.purge or not (args.older_than or args.also or args.dry_run), only, purge=False)
    if args.purge:
        plan(layout, args.older_than, args.also)  # bad input ends nothing
    if not args.dry_run:
        _end(layout)
    if args.purge:
        removal = plan(layout, args.older_than, args.also)
        print(*(list(removal.lines()) or ["no run left anything"]), sep="\n", flush=True)
        done = "a dry run: nothing was removed" if args.dry_run else f"freed {in_units(removal.carry_out())}"
        print(f"{done}; copies and backups are not reached")
    return 0


def _end(layout: FederationLayout) -> None:
    parts = [(layout.site(number), "supernode") for number in range(layout.clients)]
    ended = sum(processes.stop(folder, name) for folder, name in [*parts, (layout.superlink, "superlink")])
    print(f"ended {ended} processes; keys, state and runs stay in {layout.folder}")


def _renew(args: argparse.Namespace) -> int:
    layout = FederationLayout.read(args.folder)
    renew(layout)
    print(f"certificate until {_certified_until(layout):%Y-%m-%d}, from the server's next start")
    return 0


def _hash(args: argparse.Namespace) -> int:
    print(bundle_hash())
    return 0


_COMMANDS = {"init": _init, "up": _up, "status": _status, "down": _down, "renew": _renew, "hash": _hash}


def _folder(word: str) -> Path:
    if not word or not word.isprintable():
        raise argparse.ArgumentTypeError(f"expected a name of printable characters, got {word!r}")
    return Path(word)


def _parser(program: str) -> Parser:
    parser = Parser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        one = commands.add_parser(name)
        if name != "hash":
            one.add_argument("folder", type=_folder, metavar="DIR")
        if name == "down":
            one.add_argument("--purge", action="store_true", help="remove what ended runs left; it is listed first")
            one.add_argument("--older-than", type=float, default=0.0, metavar="DAYS", help="only what is that old")
            one.add_argument(
                "--also", nargs="+", choices=ALSO, default=[], help="what else goes; see docs/retention.md"
            )
            one.add_argument("--dry-run", action="store_true", help="end and remove nothing, list alone")
        if name == "init":
            one.add_argument("--clients", type=int, default=3, help="sites (default 3)")
            words = "whose uploads the sites' policies allow, separated by commas (default %(default)s)"
            one.add_argument("--methods", default=Experiment().method, help=words)
            one.add_argument("--max-upload-mb", type=float, default=100.0, help="which these policies allow")
            one.add_argument("--epsilon", type=float, default=inf, help="budget of each site over all runs; inf: none")
            one.add_argument("--delta", type=float, default=1e-5, help="of these budgets")
            one.add_argument("--unit", choices=get_args(Unit), default="example", help="of these budgets")
            one.add_argument("--patient-examples", type=int, default=0, help="of one patient at most, for unit=patient")
            words = "training examples below which a site answers nothing"
            one.add_argument("--min-examples", type=int, default=0, help=words)
            words = "that may leave; default: none with an epsilon, else all"
            one.add_argument("--metrics", choices=METRICS, help=words)
            words = "of a failure that may leave: own (those of no exception) or all"
            one.add_argument("--error-detail", choices=get_args(Reasons), default="own", help=words)
            words = "package.module:Class outside the app that a run may name beside --methods"
            one.add_argument("--plugins", nargs="+", default=[], metavar="NAME", help=words)
            one.add_argument("--host", default="127.0.0.1", help="name or address under which sites reach the server")
            one.add_argument("--listen", default="127.0.0.1", help="address that the server listens on")
            one.add_argument("--port", type=int, default=9092, help="of the server for sites")
            one.add_argument("--control-port", type=int, default=9093, help="of the server for flwr")
            one.add_argument("--site-port", type=int, default=9200, help="of the first site's own processes")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
