"""What a GPU can by its name: compute capability, dense matmul rate, PCIe, NVLink.

Sources: NVIDIA's data sheets (dense rates: half of what is printed "with sparsity"), "CUDA GPUs" for the
compute capabilities. Rates are of bfloat16 (float16 before Ampere) with float32 accumulation, in TFLOP/s at
boost clock; None where tensor cores are missing or the card exists with several power limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """One family of cards.

    Attributes:
        capability: 80 is sm_80.
        tflops: dense bfloat16/float16 rate; None where not known.
        pcie: (generation, lanes) that the card can.
        nvlinks: links of a fully wired card; None where it may or may not be bridged.
        has_fabric: hangs on NVSwitch, so that CUDA waits for Fabric Manager.
        is_data_center: forward compatibility packages (cuda-compat) work only on these.
    """

    capability: int
    tflops: float | None = None
    pcie: tuple[int, int] | None = None
    nvlinks: int | None = 0
    has_fabric: bool = False
    is_data_center: bool = False


def _server(
    capability: int, tflops: float | None, pcie_gen: int, nvlinks: int | None = 0, *, fabric: bool = False
) -> GpuModel:
    return GpuModel(
        capability=capability,
        tflops=tflops,
        pcie=(pcie_gen, 16),
        nvlinks=nvlinks,
        has_fabric=fabric,
        is_data_center=True,
    )


def _desk(
    capability: int, tflops: float | None, pcie_gen: int, nvlinks: int | None = 0, lanes: int = 16
) -> GpuModel:
    return GpuModel(capability=capability, tflops=tflops, pcie=(pcie_gen, lanes), nvlinks=nvlinks)


# Searched in order: the longer name stands before the shorter one that it contains.
_MODELS: Final[tuple[tuple[str, GpuModel], ...]] = (
    (r"\bGB300\b", _server(103, 2500, 6, 18, fabric=True)),
    (r"\bGB200\b", _server(100, 2500, 5, 18, fabric=True)),
    (r"\bB300\b", _server(103, 2250, 6, 18, fabric=True)),
    (r"\bB200\b", _server(100, 2250, 5, 18, fabric=True)),
    (r"\bGB10\b", _desk(121, None, 5)),
    (r"\bGH200\b", _server(90, 990, 5, 18)),
    (r"\bH200 NVL\b", _server(90, 835, 5, None)),
    (r"\bH200\b", _server(90, 989, 5, 18, fabric=True)),
    (r"\bH100 NVL\b", _server(90, 835, 5, None)),
    (r"\bH100 PCIe\b", _server(90, 756, 5, None)),
    (r"\bH(100|800)\b.*HBM3", _server(90, 989, 5, 18, fabric=True)),
    (r"\bH20\b", _server(90, 148, 5, 18, fabric=True)),
    (r"\bA(100|800)-SXM", _server(80, 312, 4, 12, fabric=True)),
    (r"\bA(100|800)[ -].*PCIE?", _server(80, 312, 4, None)),
    (r"\bA30\b", _server(80, 165, 4, None)),
    (r"\bA40\b", _server(86, 150, 4, None)),
    (r"\bA10\b", _server(86, 125, 4)),
    (r"\bA10G\b", _server(86, 70, 4)),
    (r"\bA16\b", _server(86, None, 4)),
    (r"\bA2\b", _server(86, 18, 4)),
    (r"\bL40S\b", _server(89, 362, 4)),
    (r"\bL40\b", _server(89, 181, 4)),
    (r"\bL4\b", _server(89, 121, 4)),
    (r"\bL20\b", _server(89, 119, 4)),
    (r"\bV100-SXM[23]", _server(70, 125, 3, 6)),
    (r"\bV100", _server(70, 112, 3)),
    (r"\bT4\b", _server(75, 65, 3)),
    (r"\bP100-SXM2", _server(60, None, 3, 4)),
    (r"\bP100", _server(60, None, 3)),
    (r"\b(P40|P4)\b", _server(61, None, 3)),
    (r"\bM(60|40|6|4)\b", _server(52, None, 3)),
    (r"\bK80\b", _server(37, None, 3)),
    (r"\bK(40|20)", _server(35, None, 3)),
    (r"RTX PRO \d+.*Blackwell", _desk(120, None, 5)),
    (r"RTX 50[5-9]0.*Laptop", _desk(120, None, 5)),
    (r"RTX 5090", _desk(120, 209, 5)),
    (r"RTX 50[5-9]0", _desk(120, None, 5)),
    (r"RTX 40[5-9]0.*Laptop", _desk(89, None, 4)),
    (r"RTX 4090", _desk(89, 165, 4)),
    (r"RTX 4080", _desk(89, 97, 4)),
    (r"RTX 40[5-7]0", _desk(89, None, 4)),
    (r"RTX 30[5-9]0.*Laptop", _desk(86, None, 4)),
    (r"RTX 3090", _desk(86, 71, 4, None)),
    (r"RTX 3080", _desk(86, 60, 4)),
    (r"RTX 30[5-7]0", _desk(86, None, 4)),
    (r"RTX 6000 Ada", _desk(89, 364, 4)),
    (r"RTX [2345]\d00 Ada", _desk(89, None, 4)),
    (r"RTX A6000", _desk(86, 155, 4, None)),
    (r"RTX A[1-5]\d00", _desk(86, None, 4, None)),
    (r"TITAN RTX", _desk(75, 130, 3, None)),
    (r"RTX 20[5-8]0", _desk(75, None, 3, None)),
    (r"Quadro RTX [34568]000", _desk(75, None, 3, None)),
    (r"GTX 16\d0", _desk(75, None, 3)),
    (r"TITAN V\b", _desk(70, 110, 3)),
    (r"TITAN (X \(?Pascal|Xp)", _desk(61, None, 3)),
    (r"GTX 10[5-8]0", _desk(61, None, 3)),
    (r"GTX TITAN X", _desk(52, None, 3)),
    (r"GTX 9[5-8]0", _desk(52, None, 3)),
    (r"GTX TITAN", _desk(35, None, 3)),
    (r"GTX 7[68]0", _desk(35, None, 3)),
    (r"\bOrin\b", GpuModel(capability=87)),
    (r"\bThor\b", GpuModel(capability=110)),
    (r"\bXavier\b", GpuModel(capability=72)),
)


def find_gpu_model(name: str) -> GpuModel | None:
    """The family of a card, by the name that NVML or nvidia-smi gives; None for one not in the table.

    A name that the tool cut short (`Tesla V100-PCIE...`) is found where what is left tells it.
    """
    text = name.removesuffix("...")
    return next((model for pattern, model in _MODELS if re.search(pattern, text, re.IGNORECASE)), None)
