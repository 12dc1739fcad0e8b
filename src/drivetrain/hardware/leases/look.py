"""Whether a GPU is leased, and by whom. Looking takes nothing, and disturbs nobody who is taking one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.leases.byte_locks import locked_elsewhere
from drivetrain.hardware.leases.error import LeaseError
from drivetrain.hardware.leases.folder import gpu_file, open_to_look
from drivetrain.hardware.leases.holder import Holder, read_holder
from drivetrain.hardware.leases.inheritors import inheritors
from drivetrain.hardware.leases.take import FIRST_PLACE, LAST_PLACE, LEASE_BYTE
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True, kw_only=True)
class LeaseState:
    """One GPU's lease.

    Attributes:
        is_held: Unknown where the lock could not be looked at.
        holder: who says so in the file; None where nobody has leased it.
        pids: of those that hold the lease, as far as this user may see.
    """

    is_held: bool | Unknown
    holder: Holder | Unknown | None
    num_waiting: int | Unknown
    pids: tuple[int, ...] = ()


def look(folder: Path, uuid: str | Unknown) -> LeaseState:
    """The lease on the GPU with this UUID."""
    if isinstance(uuid, Unknown):
        return LeaseState(is_held=uuid, holder=uuid, num_waiting=uuid)
    path = gpu_file(folder, uuid)
    try:
        return _look(path)
    except LeaseError as error:
        why = Unknown(error.found)
        return LeaseState(is_held=why, holder=why, num_waiting=why)


def _look(path: Path) -> LeaseState:
    file = open_to_look(path)
    if file is None:
        return LeaseState(is_held=False, holder=None, num_waiting=0)
    try:
        num_waiting = len(locked_elsewhere(file, FIRST_PLACE, LAST_PLACE))
        if not locked_elsewhere(file, LEASE_BYTE, LEASE_BYTE):
            return LeaseState(is_held=False, holder=None, num_waiting=num_waiting)
        return LeaseState(
            is_held=True, holder=read_holder(file), num_waiting=num_waiting, pids=inheritors(path)
        )
    finally:
        os.close(file)
