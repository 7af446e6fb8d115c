"""State that an accelerator keeps between calls, such as a decoder's cache, and what it saves.

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

    `past` and `present` are rows of the problem's tensors, `accelerators` the numbers of those that keep
    it, 0 for the first one. `is_read` says that other units read the present.
    """

    pair: StatePair
    unit: int
    past: int
    present: int
    accelerators: tuple[int, ...]
    is_read: bool


def find_kept_pairs(
    tensors: UnitTensors,
    pairs: Sequence[StatePair],
    keeps_state: Sequence[bool],
    runs: NDArray[np.bool_],
) -> tuple[KeptPair, ...]:
    """Return the pairs of state that accelerators keep.

    `keeps_state` says which accelerators keep state; `runs`, bool (units, accelerators), which units
    each may run.
    A pair counts as sent where several units read the past, or another one makes the present; and where
    other units read the present and an accelerator may run the unit that does not keep state, since the
    host then needs it as an output as well.
    """
    rows = {name: row for row, name in enumerate(tensors.names)}
    found = []
    for pair in pairs:
        past, present = rows.get(pair.past), rows.get(pair.present)
        if past is None or present is None or not tensors.whole[past]:
            continue
        unit = tensors.producers[present]
        if unit < 0 or tensors.consumers[past] != [unit]:
            continue
        runners = np.flatnonzero(runs[unit]).tolist()
        keepers = tuple(each for each in runners if keeps_state[each])
        is_read = bool(tensors.consumers[present])
        if not keepers or (is_read and len(keepers) < len(runners)):
            continue
        found.append(KeptPair(pair, unit, past, present, keepers, is_read))
    return tuple(found)


def zero_kept_transfers(
    transfers: TransferCosts, accelerator: int, pairs: Sequence[KeptPair]
) -> TransferCosts:
    """Return the costs of an accelerator's transfers, with 0 for the state that it keeps.

    A present that others read is sent to them as before.
    """
    kept = [each for each in pairs if accelerator in each.accelerators]
    if not kept:
        return transfers
    past = [each.past for each in kept]
    present = [each.present for each in kept if not each.is_read]
    to_device, to_host = transfers.to_device.copy(), transfers.to_host.copy()
    sizes = transfers.sizes.copy()
    to_device[past] = 0
    to_host[present] = 0
    sizes[[*past, *present]] = 0
    return replace(transfers, to_device=to_device, to_host=to_host, sizes=sizes)


def find_unneeded_outputs(pairs: Sequence[KeptPair]) -> frozenset[str]:
    """Return the presents that the host does not need as outputs.

    They are those that other units read: such a pair is kept wherever its unit may run, and the present
    is sent to its readers alone. One that nothing reads may be made by an accelerator that keeps no
    state, which sends it; for those that keep it `zero_kept_transfers` makes that 0.
    """
    return frozenset(each.pair.present for each in pairs if each.is_read)
