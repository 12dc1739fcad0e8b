"""What the driver's Xid numbers mean for a training run, and what to do about them.

Source: NVIDIA "XID Errors" (GPU deployment and management documentation), the catalogue of Xid messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One number. `is_hardware`: points at the card, its link or its firmware, not at the program."""

    meaning: str
    do: str
    is_hardware: bool = True


_RESET = "drain the node, then reset the GPU: sudo nvidia-smi --gpu-reset -i {gpu}"
_POWER = "drain the node, power it off and on, look at power and temperature, reseat or replace the card"
_PROGRAM = "look for the program's fault: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer"

_XIDS: Final[dict[int, Xid]] = {
    13: Xid(meaning="graphics engine exception", do=_PROGRAM, is_hardware=False),
    31: Xid(meaning="memory page fault", do=_PROGRAM, is_hardware=False),
    43: Xid(meaning="the program's channel stopped", do=_PROGRAM, is_hardware=False),
    45: Xid(meaning="channels were torn down, as when a program is killed", do=_PROGRAM, is_hardware=False),
    48: Xid(meaning="double-bit ECC error", do=_RESET),
    61: Xid(meaning="internal micro-controller halt", do=_RESET),
    62: Xid(meaning="internal micro-controller halt", do=_RESET),
    63: Xid(meaning="a memory row was remapped or a page retired", do=_RESET),
    64: Xid(meaning="a row could not be remapped", do=_POWER),
    74: Xid(
        meaning="NVLink error", do="reset all GPUs of the node; check bridges, baseboard, Fabric Manager"
    ),
    79: Xid(meaning="GPU has fallen off the bus", do=_POWER),
    92: Xid(meaning="many corrected memory errors", do=_RESET),
    94: Xid(meaning="contained ECC error", do=_RESET),
    95: Xid(meaning="uncontained ECC error", do=_RESET),
    109: Xid(meaning="context switch time-out", do=_RESET),
    119: Xid(meaning="GSP did not answer", do=_POWER),
    120: Xid(meaning="GSP error", do=_POWER),
    121: Xid(meaning="C2C link error", do=_RESET),
    140: Xid(meaning="unrecovered ECC error", do=_RESET),
    143: Xid(meaning="GPU initialisation failed", do=_POWER),
    154: Xid(meaning="the driver asks for a recovery action", do=_RESET),
}


def explain_xid(number: int) -> Xid:
    """What `number` means; one not in the table is said to be unknown, and counted as hardware."""
    return _XIDS.get(number, Xid(meaning="not in this table", do="see NVIDIA's catalogue of Xid errors"))
