"""What an installed mpqueue has to do with nothing else around: no compiler, no PATH, no extras.

Usage: python smoke.py DIRECTORY (of the environment's scripts)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import mpqueue

EAGER = {"numpy", "asyncio", "argparse", "posix_ipc"} & set(sys.modules)


def main() -> None:
    """Puts, reserves and acks, here, in another process and by the command line."""
    assert not EAGER, f"import mpqueue loads {EAGER}"
    script = os.path.join(sys.argv[1], "mpqueue")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "spool")
        with mpqueue.Queue(path) as q:
            q.put(b"here")
            for command in ([script], [sys.executable, "-P", "-m", "mpqueue"]):
                subprocess.run([*command, "put", path, "--lines"], input=b"there\n", check=True)
            with q.consumer() as consumer:
                bodies = []
                for _ in range(3):
                    item = consumer.reserve(timeout=30)
                    assert item is not None
                    bodies.append(item.body)
                    item.ack()
            assert bodies == [b"here", b"there", b"there"], bodies
            assert len(q) == 0
        subprocess.run([script, "verify", path], check=True, stdout=subprocess.DEVNULL)
        mpqueue.destroy(path)
        assert not os.path.exists(path)
    print("smoke ok: Python", sys.version.split()[0])


main()
