"""Dies at each call that a step of effect, mark, commit and ack makes, and goes on after it.

Usage: python kills.py SCENARIO DIRECTORY DATABASE [every]

SCENARIO is inbox, outbox or pipeline. DATABASE is a file of SQLite or a conninfo of PostgreSQL. A
forked child works and is killed at its K-th call, for every K until one lives to the
end; a second child finishes the work. Whatever K is, each effect has to be there once. Prints, as
JSON, how many died and in what state. The deaths are before each call that reaches a file or the
database; with `every` before and after all calls that the watched modules make.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import mpqueue
from mpqueue import _database, inbox, outbox, pipeline

inbox._PRUNE_EVERY = 1
WATCHED = {module.__file__ for module in (_database, inbox, outbox, pipeline)} | {__file__}
REACHING = {"execute", "executemany", "commit", "put", "_claim", "flush", "ack", "checkpoint"}
EVERY = sys.argv[4:] == ["every"]
ITEMS = 2


def die_at(number: int) -> None:
    """From now on calls are counted; the one of this number is not made."""
    seen = 0

    def count(frame: FrameType, event: str, callee: Any) -> None:
        nonlocal seen
        native = event.startswith("c_")
        caller, name = (frame, callee.__name__) if native else (frame.f_back, frame.f_code.co_name)
        if caller is None or caller.f_code.co_filename not in WATCHED:
            return
        if EVERY or (event in ("call", "c_call") and name in REACHING):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def in_child(work: Callable[[], None], number: int = 0) -> bool:
    """Runs it in a process of its own; True when that lived."""
    pid = os.fork()
    if pid == 0:
        if number:
            die_at(number)
        work()
        sys.setprofile(None)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), f"call {number}: the child ended with {status}"
    return status == 0


class Rig:
    """Two queues and a database with the tables `effects` and `orders`."""

    def __init__(self, directory: str, database: str) -> None:
        self.directory = directory
        self.database = database
        self.a = mpqueue.Queue(f"{directory}/a", segment_size=1 << 20, durability="none")
        self.b = mpqueue.Queue(f"{directory}/b", segment_size=1 << 20, durability="none")
        self.connection = self.connect()
        for table in ("effects", "orders"):
            self.connection.execute(f"CREATE TABLE {table} (n BIGINT)")
        self.connection.commit()

    def connect(self) -> Any:
        """A connection, in the modes that the libraries have by default."""
        if "=" in self.database:
            import psycopg

            return psycopg.connect(self.database)
        connection = sqlite3.connect(self.database, timeout=60)
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        return connection

    def numbers(self, table: str) -> list[int]:
        """What is committed there."""
        if "=" in self.database:
            rows = self.connection.execute(f"SELECT n FROM {table}").fetchall()
            self.connection.rollback()
        else:  # not one that a child has inherited
            connection = self.connect()
            rows = connection.execute(f"SELECT n FROM {table}").fetchall()
            connection.close()
        return sorted(row[0] for row in rows)

    def consume(self, name: str) -> None:
        """The effects of all items of a queue."""
        connection = self.connect()
        queue = mpqueue.Queue(f"{self.directory}/{name}")
        with queue.consumer(wait=60) as consumer, inbox.Inbox(connection, consumer) as marks:
            for item in consumer.drain():
                with marks.once(item) as fresh:
                    if fresh:
                        connection.execute(f"INSERT INTO effects VALUES ({int(item.body)})")
        connection.close()

    def forward(self) -> None:
        """All items of the first queue into the second."""
        first = mpqueue.Queue(f"{self.directory}/a")
        second = mpqueue.Queue(f"{self.directory}/b")
        with first.consumer(wait=60) as consumer:
            for item in consumer.drain():
                pipeline.forward(item, second)

    def order(self, numbers: list[int]) -> None:
        """One transaction with an order and its row for the queue for each, and one aborted."""
        connection = self.connect()
        box = outbox.Outbox(connection)
        for number in numbers:
            connection.execute(f"INSERT INTO orders VALUES ({number})")
            box.add(b"%d" % number)
        connection.commit()
        box.add(b"-1")
        connection.rollback()
        connection.close()

    def relay(self) -> None:
        """The rows of the outbox into the first queue."""
        connection = self.connect()
        queue = mpqueue.Queue(f"{self.directory}/a")
        with outbox.Relay(connection, queue, wait=60) as relay:
            relay.run(until_empty=True)
        connection.close()


def inbox_run(rig: Rig, number: int, numbers: list[int]) -> tuple[bool, str]:
    """Dies in the consumer."""
    rig.a.put_many([b"%d" % n for n in numbers])
    lived = in_child(lambda: rig.consume("a"), number)
    state = f"{sum(n in numbers for n in rig.numbers('effects'))} done, {len(rig.a)} there"
    in_child(lambda: rig.consume("a"))
    return lived, state


def outbox_run(rig: Rig, number: int, numbers: list[int]) -> tuple[bool, str]:
    """Dies in the writer or in the relay."""

    def work() -> None:
        rig.order(numbers)
        rig.relay()

    lived = in_child(work, number)
    left = len(rig.numbers("(SELECT id AS n FROM mpqueue_outbox) AS rows"))
    state = f"{left} to relay, {len(rig.a)} there"
    in_child(rig.relay)
    in_child(lambda: rig.consume("a"))
    return lived, state


def pipeline_run(rig: Rig, number: int, numbers: list[int]) -> tuple[bool, str]:
    """Dies between two queues."""
    rig.a.put_many([b"%d" % n for n in numbers])
    lived = in_child(rig.forward, number)
    state = f"{len(rig.a)} in the first, {len(rig.b)} in the second"
    in_child(rig.forward)
    in_child(lambda: rig.consume("b"))
    return lived, state


def main() -> None:
    """Every K."""
    scenario, directory, database = sys.argv[1:4]
    run = {"inbox": inbox_run, "outbox": outbox_run, "pipeline": pipeline_run}[scenario]
    rig = Rig(directory, database)
    in_child(lambda: rig.order([]))  # makes the tables, as a first start would
    wanted: list[int] = []
    states: collections.Counter[str] = collections.Counter()
    number = 0
    while True:
        number += 1
        numbers = [number * ITEMS + n for n in range(ITEMS)]
        lived, state = run(rig, number, numbers)
        states[state] += 1
        wanted += numbers
        if scenario == "outbox":  # what was not committed is not wanted
            wanted = rig.numbers("orders")
        effects = rig.numbers("effects")
        assert effects == wanted, f"{scenario}, call {number}: {state}, then {effects[-9:]}"
        assert len(rig.a) == len(rig.b) == 0
        if lived:
            break
    print(json.dumps({"deaths": number - 1, "states": states}))
    for queue in (rig.a, rig.b):
        queue.close()
        mpqueue.destroy(queue.path)


if __name__ == "__main__":
    main()
