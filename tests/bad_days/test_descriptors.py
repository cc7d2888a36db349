"""Goal: other code that closes descriptors it does not own costs that code nothing, and no item.

Method: a process closes the descriptors that its open queue keeps, as daemon libraries close all
that they find, and gets the numbers back for files of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rig import drain, run

SCRIPT = """
q = mpqueue.Queue(args[0], segment_size=65536)
q.put_many([b"%d" % number for number in range(5)])
consumer = q.consumer()
consumer.reserve().ack(durable=True)
for number in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{number}").startswith(os.fsdecode(args[0])):
            os.close(int(number))
    except FileNotFoundError:
        pass
files = [open(os.path.join(os.fsdecode(args[1]), str(number)), "w+") for number in range(40)]
for file in files:
    file.write("precious")
    file.flush()
item = consumer.reserve()
try:
    item.ack(durable=True)
except OSError as error:
    say(error)
for close in (consumer.close, q.close):
    try:
        close()
    except OSError:
        pass
for file in files:
    file.seek(0)
    say(file.read())
"""


@pytest.mark.parametrize("durability", ["none", "group"])
def test_descriptors_that_others_closed_are_not_ours(tmp_path: Path, durability: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    path = tmp_path / "spool"
    script = SCRIPT.replace("segment_size", f"durability={durability!r}, segment_size")
    error, *found = run(script, path, own)
    assert "closed a descriptor" in error
    assert str(path) in error
    assert found == ["precious"] * 40
    assert drain(path) == [b"2", b"3", b"4"]
