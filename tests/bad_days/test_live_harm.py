"""Goal: harm to the files of a running queue ends in a named error, also where nobody waits.

Method: control is deleted, overwritten with noise, or the whole directory is removed under a child
that holds items; the child tells how each call ended. A call that does not end is the test's hang.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rig import run

NAMED = """
def how(act):
    try:
        act()
    except Exception as error:
        assert isinstance(error, mpqueue.MpqueueError), repr(error)
        return type(error).__name__
    return "ok"

"""


@pytest.mark.parametrize("durability", ["group", "sync"])
@pytest.mark.parametrize("harm", ["control", "meta", "directory"])
def test_what_promises_durability_notices_removed_files(
    tmp_path: Path, durability: str, harm: str
) -> None:
    """Broken once: control was deleted, and a thousand puts, flushes and acks returned."""
    told = run(
        NAMED
        + """
import shutil
q = mpqueue.Queue(args[0], segment_size=65536, durability=args[1].decode())
for n in range(5):
    q.put(b"%d" % n)
c = q.consumer()
item = c.reserve(0)
if args[2] == b"directory":
    shutil.rmtree(args[0])
else:
    os.unlink(os.path.join(args[0], args[2]))
say(how(lambda: q.put(b"x")), how(lambda: item.ack(durable=True)), how(q.flush), how(q.close))
""",
        tmp_path / "spool",
        durability,
        harm,
    )
    assert told == ["QueueRemoved QueueRemoved QueueRemoved ok"]


@pytest.mark.parametrize("seed", range(4))
def test_no_call_runs_away_on_an_overwritten_control(tmp_path: Path, seed: int) -> None:
    """Broken once: reserve(0) walked through as many generations as the noise promised."""
    told = run(
        NAMED
        + """
import random
random.seed(int(args[1]))
q = mpqueue.Queue(args[0], segment_size=65536)
for n in range(20):
    q.put(bytes([n]) * 9000)
c = q.consumer()
items = [c.reserve(0) for _ in range(5)]
with open(os.path.join(args[0], b"control"), "r+b") as file:
    file.write(random.randbytes(os.path.getsize(file.name)))
calls = {
    "put": lambda: q.put(bytes(9000), timeout=1),
    "ack": items[0].ack,
    "durable": lambda: items[1].ack(durable=True),
    "reserve": lambda: c.reserve(0),
    "peek": c.peek,
    "drain": lambda: list(c.drain()),
    "len": lambda: len(q),
    "stats": q.stats,
    "checkpoint": c.checkpoint,
    "flush": q.flush,
    "release": c.close,
    "close": q.close,
}
for name, call in calls.items():
    say(name, how(call))
""",
        tmp_path / "spool",
        str(seed),
    )
    ends = dict(line.split() for line in told)
    assert len(ends) == 12
    assert ends["put"] != "ok" and ends["durable"] != "ok"
