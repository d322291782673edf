"""The commands apply, bundle and export, which use trained runs, and serve, site and replay, for real sites."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..core.console import say
from ..core.errors import UserError
from ..io.checksums import require
from ..io.paths import Paths, RunFiles
from ..jobs.record import one_gpu
from ..planning.call import read_by
from .data import inspected
from .group import Group, call, one_plan


def add(group: Group) -> None:
    """Add the commands `fedshift apply` and `fedshift bundle` to a group."""
    command = group.add(apply, "run", "images", work="loading the network and its libraries")
    _add_inference(command, "results/applied")
    command.add_argument("--no-examples", action="store_true", help="show no images on the page")
    command.add_argument("--skip-unreadable", action="store_true", help="leave out and list files that are not images")
    command = group.add(bundle, "run", work="loading the network and its libraries")
    _add_inference(command, "results/bundles")


def _add_inference(command: argparse.ArgumentParser, folder: str) -> None:
    """Add the options that choose an inference, a client's network and the folder to write (default: in `folder`)."""
    command.add_argument(
        "--inference", default="source", metavar="NAME", help="such as source or tsmobn (default: %(default)s)"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the inference, such as momentum=0.8"
    )
    command.add_argument(
        "--client", metavar="SITE", help="use the network of this client (default: the global network)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help=f"folder to write; default: one in {folder}")


def apply(args: argparse.Namespace) -> None:
    """Predict your own images with a trained run, and write predictions.csv and a page."""
    from ..jobs.apply import apply as job
    from ..jobs.apply import chosen, find
    from ..page.applied import write

    inference = chosen(args.inference, args.set, args.client)
    options = {"threads": args.threads, "skip_unreadable": args.skip_unreadable, "examples": not args.no_examples}
    run = find(args.run, Paths())
    require(RunFiles(run).trained)
    with one_gpu():
        result = job(run, Path(args.images), inference, args.out, **options)
    say(f"wrote {result.out / 'predictions.csv'} and {write(result)}")


def bundle(args: argparse.Namespace) -> None:
    """Write a trained run as a MONAI bundle, which monai.bundle verifies and runs."""
    from ..export.bundle import export
    from ..jobs.apply import chosen, find

    folder = find(args.run, Paths())
    require(RunFiles(folder).trained)
    out = args.out or Paths().bundle(folder.resolve().name)
    say(f"wrote {export(folder, chosen(args.inference, args.set, args.client), out)}")


def add_exports(group: Group) -> None:
    """Add the command `fedshift export` to a group."""
    command = group.add(export, "format", "study", work="exporting rounds and scores")
    command.add_argument("--to", metavar="WHERE", help="a tracking URI; default: a database in results/exports")


def export(args: argparse.Namespace) -> None:
    """Export rounds and scores of a study's runs to MLflow."""
    plan = one_plan(args)
    from ..export import mlflow

    require(read_by("export", plan, Paths()), lambda: call(args))
    runs = mlflow.trained(plan, Paths())
    say(mlflow.export(mlflow.accounts(plan, Paths(), runs), plan.name, args.to))
    left = len(plan.runs) - len(runs)
    if left:
        say(f"left out {left} of {len(plan.runs)} runs, which are not trained; see fedshift status")


FOLDER = Path("federation")
"""Folder of certificates and keys at the server."""


def add_sites(group: Group) -> None:
    """Add the commands `fedshift serve`, `fedshift site` and `fedshift replay` to a group."""
    command = group.add(serve, "study", work="opening the server of its sites")
    command.add_argument("--init", action="store_true", help="only write certificates, and a folder for each site")
    command.add_argument("--host", default="localhost", help="name or address by which sites reach this machine")
    command.add_argument("--port", type=int, default=8000, help="port of the server (default: %(default)s)")
    command.add_argument(
        "--keys", type=Path, default=FOLDER, metavar="DIR", help="folder of certificates (default: %(default)s)"
    )
    command.add_argument("--insecure", action="store_true", help="no certificates, for sites on this machine only")
    command.add_argument("--resume", action="store_true", help="go on after the last finished round")
    command.add_argument(
        "--wait", type=float, default=3600.0, metavar="S", help="seconds to wait for the sites (default: %(default)s)"
    )
    command = group.add(site, "study", work="checking the table of this site")
    command.add_argument("--site", required=True, metavar="NAME", help="name of this site in the study")
    command.add_argument("--data", required=True, type=Path, metavar="CSV", help="the site's own table of images")
    command.add_argument("--keys", type=Path, metavar="DIR", help="folder of keys that this site got from the server")
    command.add_argument("--server", metavar="HOST:PORT", help="address of the server; default: the one in --keys")
    command.add_argument("--no-rows", action="store_true", help="send sums over groups of patients, no row per image")
    command.add_argument(
        "--offers",
        action="store_true",
        help="let plug-ins send data derived from images, such as spectra, before the first round",
    )
    command.add_argument(
        "--restart",
        action="store_true",
        help="forget the runs that began at this site, so that the server can begin them again",
    )
    command.add_argument("--yes", action="store_true", help="agree to what leaves the site without being asked")
    command = group.add(replay, "run", work="training the run again, with the sites that answered in each round")
    help_text = "table of the images of all sites (default: that of the study)"
    command.add_argument("--data", type=Path, metavar="CSV", help=help_text)


def serve(args: argparse.Namespace) -> None:
    """Train a study between real sites, as their server, and write its page."""
    plan = one_plan(args)
    from ..flower import processes

    processes.require_flower()
    from ..flower import keys, nodes
    from ..hospitals import agreed

    agreed.require(plan)
    files = keys.Keys(args.keys)
    if args.init:
        keys.write(files, args.host, args.port, agreed.sites(plan), plan.path)
        print("\n".join(nodes.instructions(plan, files, args.study)))
        return
    if not args.insecure and not files.ca.exists():
        raise UserError(args.keys, "has no certificates", f"fedshift serve {args.study} --init --host HOST writes them")
    with processes.ended_by_signals():
        address = f"127.0.0.1:{args.port}" if args.insecure else files.address.read_text(encoding="utf-8").strip()
        missing = nodes.serve(plan, None if args.insecure else files, address, args.wait, args.threads, args.resume)
    for run in plan.runs:
        say(f"trained {run}")
    from ..analysis import score as scores

    kept = set()
    for level in scores.levels(plan, Paths()):
        say(level.line)
        kept.add(level.site)
    if missing or kept >= {*agreed.sites(plan)}:
        say(f"no page: the rows of {', '.join(missing or sorted(kept))} are missing")
        return
    from .steps import report

    report(args)


def site(args: argparse.Namespace) -> None:
    """Take part in a study as one of its sites, with the site's own table of images."""
    plan = one_plan(args)
    from ..flower import processes

    processes.require_flower()
    from ..flower import nodes
    from ..hospitals.hospital import Hospital, leaves

    hospital = Hospital(plan, args.site, args.data, rows=not args.no_rows, offers=args.offers, threads=args.threads)
    ca, key, address = nodes.credentials(args.keys, args.server)
    processes.require_tls(address, ca)
    for text in inspected(hospital.local):
        print(text)
    hospital.prepare()
    print(f"What leaves this site for {address}:", *leaves(hospital), sep="\n", flush=True)
    if not args.yes and not _agreed():
        raise UserError("fedshift site", "nothing was sent", "answer yes, or add --yes")
    if args.restart:
        hospital.forget()
    with processes.ended_by_signals():
        nodes.take_part(hospital, address, ca, key)


def replay(args: argparse.Namespace) -> int:
    """Train a run of real sites again in simulation, with each round's participants, and compare the results.

    Returns 1 if a tensor, a loss or an accuracy differs.
    """
    from ..jobs.apply import find
    from ..jobs.replay import again, faults, scope

    files = RunFiles(find(args.run, Paths()))
    require(files.trained)
    federation = again(files, args.data, args.threads)
    print(scope(files, federation))
    found = faults(files, federation)
    for number, problem in found:
        print(f"differs in round {number}: {problem}")
    if not found:
        print("equal: difference 0")
    return int(bool(found))


def _agreed() -> bool:
    """Ask at the terminal whether the listed data may leave the site, and return True if the answer is yes.

    Raises UserError if standard input is no terminal.
    """
    if not sys.stdin.isatty():
        problem = "asks whether what it lists may leave this site, and no terminal can answer"
        raise UserError("fedshift site", problem, "read the list, and add --yes")
    return input("May it leave? Type yes: ").strip().lower() == "yes"
