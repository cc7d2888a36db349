"""Goal: an error says what happened, not what mostly happens.

Method: the same exception brought about in different ways, told apart by its text.
"""

from __future__ import annotations

import pytest

import mpqueue
from conftest import OpenQueue


def test_a_nack_says_whether_the_item_was_acked_or_returned(open_queue: OpenQueue) -> None:
    q = open_queue()
    q.put_many([b"1", b"2", b"3"])
    with q.consumer() as c:
        one, two, three = c.reserve_many(3)
        two.ack()
        with pytest.raises(mpqueue.StaleItem, match="seq 2 was acked: it cannot be given back"):
            two.nack()
        c.ack_up_to(2)
        with pytest.raises(mpqueue.StaleItem, match="seq 1 was acked: "):
            c.nack(one)
        c.nack(three)
        with pytest.raises(mpqueue.StaleItem, match="returned since this hand-out"):
            c.nack(three)
        assert c.take(0).body == b"3"
    assert len(q) == 0
