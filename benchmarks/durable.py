"""What durability costs: sync and group against a bare write loop and other disk queues."""

from __future__ import annotations

from collections.abc import Sequence

import harness
import systems


def _producers(options: harness.Options, producers: int) -> harness.Report:
    peers: list[systems.System] = [systems.SqliteAckQueue(), systems.LiteQueue()]
    if producers == 1:
        peers += [
            systems.BareFile(preallocated=True),
            systems.BareFile(preallocated=False),
            systems.DiskcacheDeque(),
            systems.Queuelib(),
        ]
    contenders = harness.available(systems.Mpqueue("sync"), systems.Mpqueue("group"), *peers)
    report = harness.Report(
        f"{producers} producer(s), put of 100 bytes, durable when the call returns",
        harness.interleave(contenders, options, producers=producers, consumers=0),
    )
    report.ratio(
        f"group-to-sync/{producers}",
        f"group against sync, {producers} producer(s) each",
        "mpqueue group",
        "mpqueue sync",
    )
    for way in ("preallocated", "growing file"):
        report.ratio(
            f"bare/{way}",
            f"time of sync against pwrite + fdatasync, {way}",
            f"pwrite + fdatasync, {way}",  # rates: theirs / ours is the ratio of times
            "mpqueue sync",
        )
    return report


def _group_scaling(options: harness.Options) -> harness.Report:
    """group with 8 producers against sync with 1: not one interleave, so pairs are made here."""
    report = harness.Report("group with 8 producers against sync with 1, total rate")
    group, sync = systems.Mpqueue("group"), systems.Mpqueue("sync")
    rows = [harness.Row("mpqueue group, 8 producers", []), harness.Row("mpqueue sync, 1", [])]
    for _ in range(options.rounds):
        for system, producers, row in ((group, 8, rows[0]), (sync, 1, rows[1])):
            items = int(options.seconds * 10_000)
            row.rates.append(harness.run_once(system, producers, 0, items, options.directory))
    report.rows = rows
    report.ratio("group-8-to-sync-1", "group 8 against sync 1", rows[0].name, rows[1].name)
    return report


def _cycle(options: harness.Options) -> harness.Report:
    contenders = harness.available(
        systems.Mpqueue("sync"),
        systems.Mpqueue("group"),
        systems.SqliteAckQueue(),
        systems.LiteQueue(),
        systems.DiskcacheDeque(),
        systems.Queuelib(),
    )
    report = harness.Report(
        "One process, durable put + reserve + ack of 100 bytes",
        harness.interleave(contenders, options, producers=0, consumers=0),
    )
    for policy in ("group", "sync"):
        report.ratio(
            f"cycle/{policy}",
            f"{policy} against persist-queue put + get + ack",
            f"mpqueue {policy}",
            "persist-queue SQLiteAckQueue",
        )
    return report


def measure(options: harness.Options) -> Sequence[harness.Report]:
    """Puts with 1, 2, 4 and 8 producers, group's scaling, the whole cycle."""
    reports = [_producers(options, producers) for producers in (1, 2, 4, 8)]
    return [*reports, _group_scaling(options), _cycle(options)]


if __name__ == "__main__":
    harness.main(__doc__, measure)
