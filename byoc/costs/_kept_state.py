"""State that stays on an accelerator between calls, as a decoder's cache: it is not sent in each.

What a call gives as `present` is the `past` of the next one. Where one unit alone reads the past and
makes the present, both are where that unit runs, and only who else reads the present gets it sent. That
is a matter of which tensors cross, so that the placement stays an exact problem.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from byoc.costs._transfer_costs import TransferCosts, UnitTensors
from byoc.model import StatePair


@dataclass(frozen=True)
class KeptPair:
    """A pair of state that some accelerators keep, and the unit that reads and makes it.

    `past` and `present` are rows of the problem's tensors, `devices` the numbers of the accelerators,
    0 for the first. `is_read` says that other units read the present.
    """

    pair: StatePair
    unit: int
    past: int
    present: int
    devices: tuple[int, ...]
    is_read: bool


def find_kept_pairs(
    moved: UnitTensors,
    pairs: Sequence[StatePair],
    keeping: Sequence[bool],
    taken: NDArray[np.bool_],
) -> tuple[KeptPair, ...]:
    """Return the pairs of state that accelerators keep.

    `keeping` says which accelerators do; `taken`, bool (units, devices), which units each may run.
    A pair counts as sent where several units read the past, or another one makes the present; and where
    other units read the present and an accelerator may run the unit that does not keep state, since the
    host then needs it as an output as well.
    """
    rows = {name: row for row, name in enumerate(moved.names)}
    found = []
    for pair in pairs:
        past, present = rows.get(pair.past), rows.get(pair.present)
        if past is None or present is None or not moved.whole[past]:
            continue
        unit = moved.producers[present]
        devices = np.flatnonzero(taken[unit]).tolist()
        kept = tuple(each for each in devices if keeping[each])
        is_read = bool(moved.consumers[present])
        if unit < 0 or moved.consumers[past] != [unit] or not kept:
            continue
        if is_read and len(kept) < len(devices):
            continue
        found.append(KeptPair(pair, unit, past, present, kept, is_read))
    return tuple(found)


def free_kept_state(transfers: TransferCosts, device: int, kept: Sequence[KeptPair]) -> TransferCosts:
    """Return the costs of an accelerator's transfers, those of what it keeps being nothing.

    A present that others read is sent to them as before.
    """
    if not any(device in each.devices for each in kept):
        return transfers
    past = [each.past for each in kept if device in each.devices]
    present = [each.present for each in kept if device in each.devices and not each.is_read]
    to_device, to_host = transfers.to_device.copy(), transfers.to_host.copy()
    sizes = transfers.sizes.copy()
    to_device[past] = 0
    to_host[present] = 0
    sizes[[*past, *present]] = 0
    return replace(transfers, to_device=to_device, to_host=to_host, sizes=sizes)


def list_unsent(kept: Sequence[KeptPair]) -> frozenset[str]:
    """Return the outputs that the host does not need: what others read of them is sent to these."""
    return frozenset(each.pair.present for each in kept if each.is_read)
