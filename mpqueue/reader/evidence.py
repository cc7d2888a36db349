"""What a control that is not believed proves all the same: how much was accepted, and up to where.

A control of this boot lost nothing with the machine (its directory was copied, or a record of it is
damaged): every claim in it counts. Of another boot only what a finished flush had covered does.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mpqueue import layout
from mpqueue.reader.control import Control, boot_id
from mpqueue.reader.files import Meta, xxh64


class Evidence(NamedTuple):
    """`position`: no power cut took what lay before it. `accepted` and `settled` items: lifetime
    totals; `settled` is -1 where no record tells."""

    position: int
    accepted: int
    settled: int


def read_evidence(control: Control | None, meta: Meta) -> Evidence:
    """What its records say whose check holds; zeros where there is none of this queue's epoch."""
    if control is None or not _is_older_self(control, meta):
        return Evidence(0, 0, -1)
    values = control.values
    this_boot = values["boot_id"].rstrip(b"\0").decode("ascii", "replace") == boot_id()
    position = accepted = 0
    settled = -1
    base = layout.CONTROL.offset("tail")
    for at in (base, base + layout.TAIL.size):
        half = control.raw[at : at + layout.TAIL.size]
        *words, check = struct.unpack(f"<{layout.TAIL.size // 8}Q", half)
        if check != layout.record_check(words):
            continue
        tail = layout.TAIL.unpack(half)
        items = tail["items"] if this_boot else min(tail["items"], values["durable_items"])
        accepted = max(accepted, items)
        if this_boot:
            position = max(position, tail["position"])
    base = layout.CONTROL.offset("consumer_record")
    for at in (base, base + layout.CONSUMER_RECORD.size):
        half = control.raw[at : at + layout.CONSUMER_RECORD.size]
        *words, check = struct.unpack(f"<{layout.CONSUMER_RECORD.size // 8}Q", half)
        if check == layout.record_check(words):
            settled = max(settled, layout.CONSUMER_RECORD.unpack(half)["totals"][0])
    return Evidence(position, accepted, settled)


def _is_older_self(control: Control, meta: Meta) -> bool:
    values = control.values
    identity = control.raw[: layout.CONTROL.offset("identity_hash")]
    return bool(
        values["magic"] == layout.CONTROL_MAGIC
        and values["version"] == layout.FORMAT_VERSION
        and values["identity_hash"] == xxh64(identity, 0)
        and values["uuid"] == bytes.fromhex(meta.uuid)
        and values["epoch"] == meta.epoch
    )
