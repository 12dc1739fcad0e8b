"""A NIC for each GPU: one of its nearest, and as far as possible not one that another GPU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.hardware.topology.graph import Nic, Topology


def choose_nics(topology: Topology, gpus: Sequence[int]) -> dict[int, Nic | None]:
    """GPU index → its NIC; None where which is nearest is not known, or there is none.

    The most GPUs that can have a NIC of their own get one (augmenting paths); the others take the nearest
    that fewest use.
    """
    return seat_nics({gpu: topology.nearest_nics(gpu)[0] for gpu in gpus})


def seat_nics(choices: Mapping[int, Sequence[Nic]]) -> dict[int, Nic | None]:
    """`choose_nics`, given each GPU's nearest NICs."""
    owner: dict[Nic, int] = {}

    def seat(gpu: int, tried: set[Nic]) -> bool:
        for nic in sorted(choices[gpu], key=owner.__contains__):  # a free one first
            if nic in tried:
                continue
            tried.add(nic)
            if nic not in owner or seat(owner[nic], tried):
                owner[nic] = gpu
                return True
        return False

    for gpu in choices:
        seat(gpu, set())
    chosen: dict[int, Nic | None] = {gpu: nic for nic, gpu in owner.items()}
    for gpu in choices:
        if gpu not in chosen:
            taken = list(chosen.values())
            chosen[gpu] = min(choices[gpu], key=taken.count, default=None)
    return {gpu: chosen[gpu] for gpu in choices}
