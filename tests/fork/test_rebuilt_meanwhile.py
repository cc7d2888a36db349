"""Goal: a child that inherited a handle and has not used it keeps nobody out, and splits nothing.

Method: the parent ends, the queue is rebuilt while nobody is a member, then the child puts. It
used to put into the control file of before, where nobody looks: its items were accepted and lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

RunPython = Callable[..., str]

SCRIPT = """
    import os, subprocess, sys
    import mpqueue

    path = sys.argv[1]
    go, let_go = os.pipe()
    ready, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        queue = mpqueue.Queue(path, segment_size=1 << 20)
        queue.put(b"before")
        if os.fork() == 0:
            os.read(go, 1)
            try:
                queue.put(b"of the child")
                said = b"accepted"
            except mpqueue.QueueRemoved as refused:
                said = b"refused: " + str(refused).encode()
            with mpqueue.Queue(path) as again:
                again.put(b"after")
            os.write(tell, said)
        os._exit(0)
    os.waitpid(parent, 0)
    repair = [sys.executable, "-P", "-m", "mpqueue", "repair", path]
    subprocess.run(repair, check=True, stdout=subprocess.DEVNULL)
    with mpqueue.Queue(path) as queue:
        queue.put(b"meanwhile")
        os.write(let_go, b"x")
        print(os.read(ready, 500).decode())
        with queue.consumer() as consumer:
            for _ in range(3):
                item = consumer.reserve(timeout=10)
                print(item.body.decode())
                consumer.ack(item)
        print(len(queue))
"""


def test_child_of_a_rebuilt_queue_is_told_to_open_it_again(
    run_python: RunPython, spool: Path
) -> None:
    said, *items = run_python(SCRIPT, spool).splitlines()
    assert said.startswith("refused: ")
    assert "open it again" in said
    assert items == ["before", "meanwhile", "after", "0"]
