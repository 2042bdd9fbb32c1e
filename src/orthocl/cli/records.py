"""The records of a store, for commands that read all of them."""

from __future__ import annotations

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import warn

if not HELP_ONLY:
    from orthocl.lab.store.record import Record
    from orthocl.lab.store.store import Damage, Store


def readable_records(store: Store) -> list[Record]:
    """All records of a store that are good, with a word about those that are not."""
    damages: list[Damage] = []
    records = list(store.records(damages.append))
    for damage in damages[:5]:
        warn(f"left out: {damage.reason}")
    if len(damages) > 5:
        warn(f"left out: {len(damages) - 5} more damaged records, see `orthocl runs doctor`")
    return records
