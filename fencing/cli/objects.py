"""What guards keep in object stores: ``fencing objects verify``, ``history`` and ``collect``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from fencing import GuardNotEnforceable
from fencing.cli import status
from fencing.cli.display import progress, say_rows, seconds_of, shown, stamp, url_of
from fencing.cli.options import check_age, check_wait, within
from fencing.cli.output import say, say_json
from fencing.cli.services import Services

StoreUrl = Annotated[str, typer.Argument(metavar="STORE_URL", help="Such as s3://bucket. - reads it from stdin.")]
Prefix = Annotated[str, typer.Option(metavar="PREFIX", help="The guards' directory in the store.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs: docs/operations/command-line.md")]


def verify(store_url: StoreUrl, prefix: Prefix = "fencing/", json: Json = False) -> int:
    """Try out whether a store keeps what guards need.

    These are conditions of writes. Status 2: the store does not keep them.

    It writes random keys below the prefix, and deletes them again.
    """
    guard = _guard_of(store_url, prefix)
    try:
        with progress("trying the store out"):
            report = guard.verify()
    except GuardNotEnforceable as error:
        if json:
            say_json({"refused": str(error)})
        else:
            say(f"safety: {error}")
        return status.FOUND_WRONG
    if json:
        found = {"etag_form": report.etag_form, "versions_return": report.versions_return, "races": report.races}
        say_json({"refused": None, "seconds": report.seconds, **found})
    else:
        say(f"the store keeps conditions: {report.races} races had one winner each")
        if report.versions_return:
            say("the same bytes have the same version again, so prefer publications to writes in place")
    return 0


def history(
    store_url: StoreUrl,
    name: Annotated[str, typer.Argument(help="The name of the lock.")],
    prefix: Prefix = "fencing/",
    json: Json = False,
) -> int:
    """List the publications that can be read and restored.

    The newest is the first. Status 1: there is none.
    """
    found = _guard_of(store_url, prefix).publications(name)
    if json:
        say_json(
            [
                {
                    "id": each.id,
                    "number": each.number,
                    "at": stamp(each.at),
                    "until": None if each.until is None else stamp(each.until),
                    "objects": each.objects,
                    "bytes": each.size,
                }
                for each in found
            ]
        )
    else:
        say_rows(
            ("FROM", "UNTIL", "NUMBER", "OBJECTS", "BYTES", "ID"),
            ((stamp(each.at), _until(each.until), each.number, each.objects, each.size, each.id) for each in found),
        )
    return 0 if found else status.NOT_THERE


def _until(moment: datetime | None) -> str:
    return "current" if moment is None else stamp(moment)


def collect(
    services: Services,
    store_url: StoreUrl,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The locks whose old uploads are deleted.")],
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", callback=check_age, help="Keep what was current, or uploaded, since then: 1h, 7d."),
    ] = None,
    newest: Annotated[
        int,
        typer.Option(
            "--keep",
            metavar="COUNT",
            callback=within("a number, 0 or more", 0),
            help="How many of the newest earlier publications to keep.",
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, and say what would be deleted.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", callback=check_wait, help="How long to wait for each lock.")
    ] = 10.0,
    prefix: Prefix = "fencing/",
    json: Json = False,
) -> int:
    """Delete what no kept publication needs, under each lock.

    It may be repeated.
    """
    age = None if older_than is None else seconds_of(older_than)
    guard = _guard_of(store_url, prefix)
    collected = []
    with services.connect(guards=[guard]) as coordinator:
        for name in names:
            uploads = size = 0
            with progress(f"collecting {name}") as note, coordinator.hold(name, timeout) as lease:
                while found := guard.collect(lease, keep=newest, older_than=age, dry_run=dry_run):
                    uploads += len(found)
                    size += sum(each.size for each in found)
                    note(f"collecting {name}, uploads deleted: {uploads}")
                    if dry_run:
                        break
            collected.append({"name": name, "uploads": uploads, "bytes": size})
            if not json:
                say(f"{shown(name)}: uploads {'to delete' if dry_run else 'deleted'}: {uploads}, bytes: {size}")
    if json:
        say_json(collected)
    return 0


def _guard_of(text: str, prefix: str) -> Any:
    from fencing.cli.guards import store_of
    from storage_guards import ObjectStoreGuard

    return ObjectStoreGuard(store_of(url_of(text)), prefix=prefix)
