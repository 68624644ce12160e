"""Data sheets of GPU types: what the physics prior knows of a GPU that nobody has calibrated.

Peaks are dense (no sparsity). ``reach`` is the share of the peak that the largest matrix products attain on the
real part (the "maximum achievable matmul FLOPS" of stas00/ml-engineering, compute/accelerator, where measured);
elsewhere it is estimated from the balance of arithmetic to bandwidth (see :func:`estimated_reach`). ``link`` is the
bandwidth within a node and ``net`` across nodes, both for one GPU in one direction: NVLink or Infinity Fabric figures
of the vendors' sheets, PCIe 4.0 ×16 for cards without a link; the network of the usual server of that generation.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

VENDOR = "vendor data sheet"
MEASURED = "vendor data sheet; reach measured by stas00/ml-engineering, compute/accelerator"


@dataclass(frozen=True)
class Gpu:
    """One GPU type.

    Parameters
    ----------
    name
        The canonical name.
    arch
        The architecture family, which shares a calibrated correction.
    tflops
        Peak dense bf16 (fp16 where there is no bf16), TFLOP/s.
    fp32
        Peak TFLOP/s in 32 bits without rounding to fewer (no TF32); 0 where no sheet says: see :func:`full_precision`.
    fp8, fp4
        Peak dense TFLOP/s of the narrower formats; 0 where there are none.
    memory_gib
        Memory, GiB.
    bandwidth_gb_s
        Memory bandwidth, GB/s.
    link_gb_s, net_gb_s
        Bandwidth to the other GPUs of a node and to other nodes, GB/s for one GPU and direction.
    node
        GPUs of the usual server, or of the NVLink domain of a rack-scale system.
    reach
        The share of ``tflops`` that large matrix products attain; 0 for "not measured".
    source
        Where the figures come from.
    part
        The share of a GPU's arithmetic, below 1 for a MIG slice; slices do not work together.
    """

    name: str
    arch: str
    tflops: float
    fp32: float
    fp8: float
    fp4: float
    memory_gib: float
    bandwidth_gb_s: float
    link_gb_s: float
    net_gb_s: float
    node: int = 8
    reach: float = 0.0
    source: str = VENDOR
    part: float = 1.0


SHEETS: tuple[Gpu, ...] = (
    Gpu("V100-SXM-32GB", "Volta", 125, 15.7, 0, 0, 32, 900, 150, 6),
    Gpu("V100-SXM-16GB", "Volta", 125, 15.7, 0, 0, 16, 900, 150, 6),
    Gpu("V100-PCIe-32GB", "Volta", 112, 14, 0, 0, 32, 900, 12, 6),
    Gpu("T4", "Volta", 65, 8.1, 0, 0, 16, 320, 12, 6, 4),
    Gpu("RTX2080Ti", "Volta", 54, 13.4, 0, 0, 11, 616, 12, 3),
    Gpu("A10", "Ampere", 125, 31.2, 0, 0, 24, 600, 25, 12),
    Gpu("A10G", "Ampere", 70, 31.2, 0, 0, 24, 600, 25, 12),
    Gpu("A30", "Ampere", 165, 10.3, 0, 0, 24, 933, 25, 12),
    Gpu("A40", "Ampere", 149.7, 37.4, 0, 0, 48, 696, 25, 12),
    Gpu("A4000", "Ampere", 76.7, 19.2, 0, 0, 16, 448, 25, 12),
    Gpu("A5000", "Ampere", 111, 27.8, 0, 0, 24, 768, 25, 12),
    Gpu("A6000", "Ampere", 154.8, 38.7, 0, 0, 48, 768, 25, 12),
    Gpu("RTX3090", "Ampere", 71, 35.6, 0, 0, 24, 936, 12, 3),
    Gpu("A100-SXM-40GB", "Ampere", 312, 19.5, 0, 0, 40, 1555, 300, 25, 8, 0.87, MEASURED),
    Gpu("A100-SXM-80GB", "Ampere", 312, 19.5, 0, 0, 80, 2039, 300, 25, 8, 0.87, MEASURED),
    Gpu("A100-PCIe-40GB", "Ampere", 312, 19.5, 0, 0, 40, 1555, 25, 12, 8, 0.81, MEASURED),
    Gpu("A100-PCIe-80GB", "Ampere", 312, 19.5, 0, 0, 80, 1935, 25, 12, 8, 0.81, MEASURED),
    Gpu("A800-80GB", "Ampere", 312, 19.5, 0, 0, 80, 2039, 200, 25, 8, 0.87, MEASURED),
    Gpu("L4", "Ada", 121, 30.3, 242, 0, 24, 300, 25, 12, 4),
    Gpu("L20", "Ada", 119.5, 59.8, 239, 0, 48, 864, 25, 12),
    Gpu("L40", "Ada", 181, 90.5, 362, 0, 48, 864, 25, 12),
    Gpu("L40S", "Ada", 362, 91.6, 733, 0, 48, 864, 25, 25),
    # no peer-to-peer: what GPUs exchange passes the host's memory
    Gpu("RTX4090", "Ada", 165.2, 82.6, 330.3, 0, 24, 1008, 12, 3),
    Gpu("RTX6000-Ada", "Ada", 364, 91.1, 728, 0, 48, 960, 25, 12),
    Gpu("H100-SXM-80GB", "Hopper", 989, 67, 1979, 0, 80, 3350, 450, 50, 8, 0.80, MEASURED),
    Gpu("H100-PCIe-80GB", "Hopper", 756, 51, 1513, 0, 80, 2000, 50, 25),
    Gpu("H100-NVL-94GB", "Hopper", 835.5, 60, 1671, 0, 94, 3900, 300, 25),
    # bandwidth-limited and power-capped part of a large fleet; its real clock lies below the SXM part's
    Gpu("H100-96GB-500W", "Hopper", 989, 67, 1979, 0, 96, 2400, 450, 50, 8, 0.68, MEASURED),
    Gpu("H800-80GB", "Hopper", 989, 67, 1979, 0, 80, 3350, 200, 50, 8, 0.80, MEASURED),
    Gpu("H20-96GB", "Hopper", 148, 44, 296, 0, 96, 4000, 450, 50),
    Gpu("H200-SXM-141GB", "Hopper", 989, 67, 1979, 0, 141, 4800, 450, 50, 8, 0.80, MEASURED),
    Gpu("H200-NVL-141GB", "Hopper", 835.5, 60, 1671, 0, 141, 4800, 450, 50),
    Gpu("GH200-96GB", "Hopper", 989, 67, 1979, 0, 96, 4000, 450, 50, 4, 0.84, MEASURED),
    Gpu("B200-180GB", "Blackwell", 2250, 80, 4500, 9000, 180, 8000, 900, 50, 8, 0.78, MEASURED),
    Gpu("B300-288GB", "Blackwell", 2250, 80, 4500, 14000, 288, 8000, 900, 100, 8, 0.79, MEASURED),
    Gpu("GB200", "Blackwell", 2500, 80, 5000, 10000, 186, 8000, 900, 50, 72, 0.73, MEASURED),
    Gpu("GB300", "Blackwell", 2500, 80, 5000, 15000, 288, 8000, 900, 100, 72, 0.73, MEASURED),
    Gpu("RTX5090", "Blackwell", 209, 104.8, 419, 838, 32, 1792, 25, 3),
    Gpu("RTX-PRO-6000", "Blackwell", 252, 125, 503, 1007, 96, 1792, 50, 25),
    Gpu("MI210", "CDNA", 181, 22.6, 0, 0, 64, 1638, 100, 25),
    Gpu("MI250X", "CDNA", 383, 47.9, 0, 0, 128, 3280, 200, 25, 4),
    Gpu("MI300X", "CDNA", 1307, 163.4, 2615, 0, 192, 5300, 448, 50, 8, 0.51, MEASURED),
    Gpu("MI325X", "CDNA", 1307, 163.4, 2615, 0, 256, 6000, 448, 50, 8, 0.60, MEASURED),
    Gpu("MI350X", "CDNA", 2300, 144.2, 4600, 9200, 288, 8000, 538, 50, 8, 0.63, MEASURED),
    Gpu("MI355X", "CDNA", 2500, 157.3, 5000, 10100, 288, 8000, 538, 50, 8, 0.63, MEASURED),
    Gpu("Gaudi2", "Gaudi", 432, 0, 865, 0, 96, 2460, 260, 37, 8, 0.97, MEASURED),
    Gpu("Gaudi3", "Gaudi", 1835, 0, 1835, 0, 128, 3700, 525, 75, 8),
    Gpu("TPU-v4", "TPU", 275, 0, 0, 0, 32, 1228, 135, 135, 4),
    Gpu("TPU-v5e", "TPU", 197, 0, 0, 0, 16, 819, 100, 100, 4),
    Gpu("TPU-v5p", "TPU", 459, 0, 0, 0, 95, 2765, 300, 300, 4),
    Gpu("TPU-v6e", "TPU", 918, 0, 0, 0, 32, 1640, 180, 180, 4),
)
"""Every GPU type with a data sheet here."""

BY_NAME = {gpu.name: gpu for gpu in SHEETS}
ARCHS = ("Volta", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA", "Gaudi", "TPU")
UNKNOWN = BY_NAME["A100-SXM-80GB"]
"""What a GPU type without a data sheet is taken for, with a wide band and said so in the basis."""

# (what the name contains, with or without dashes, the sheet), the most specific first
_RULES: tuple[tuple[str, str], ...] = (
    (r"gb300", "GB300"),
    (r"gb200", "GB200"),
    (r"gh200", "GH200-96GB"),
    (r"b300", "B300-288GB"),
    (r"b200", "B200-180GB"),
    (r"rtxpro6000|pro6000", "RTX-PRO-6000"),
    (r"rtx6000ada|6000ada|a6000ada", "RTX6000-Ada"),
    (r"5090", "RTX5090"),
    (r"4090", "RTX4090"),
    (r"3090", "RTX3090"),
    (r"2080", "RTX2080Ti"),
    (r"h200.*nvl|nvl.*h200", "H200-NVL-141GB"),
    (r"h200", "H200-SXM-141GB"),
    (r"h100.*nvl|h100.*94g", "H100-NVL-94GB"),
    (r"h100.*(pcie|pci)", "H100-PCIe-80GB"),
    (r"h100.*(96g|500w)", "H100-96GB-500W"),
    (r"h100", "H100-SXM-80GB"),
    (r"h800", "H800-80GB"),
    (r"h20(?!0)", "H20-96GB"),
    (r"a100.*(pcie|pci).*40g|a100.*40g.*pci", "A100-PCIe-40GB"),
    (r"a100.*(pcie|pci)", "A100-PCIe-80GB"),
    (r"a100.*40g", "A100-SXM-40GB"),
    (r"a100", "A100-SXM-80GB"),
    (r"a800", "A800-80GB"),
    (r"a10g", "A10G"),
    (r"a10(?!\d)", "A10"),
    (r"a30(?!\d)", "A30"),
    (r"a40(?!\d)", "A40"),
    (r"a4000", "A4000"),
    (r"a5000", "A5000"),
    (r"a6000", "A6000"),
    (r"l40s", "L40S"),
    (r"l40", "L40"),
    (r"l20(?!\d)", "L20"),
    (r"l4(?!\d)", "L4"),
    (r"v100.*(pcie|pci)", "V100-PCIe-32GB"),
    (r"v100.*16g", "V100-SXM-16GB"),
    (r"v100", "V100-SXM-32GB"),
    (r"(^|tesla|nvidia)t4(?!\d)", "T4"),
    (r"mi355", "MI355X"),
    (r"mi350", "MI350X"),
    (r"mi325", "MI325X"),
    (r"mi300", "MI300X"),
    (r"mi2[05]0x|mi250", "MI250X"),
    (r"mi210", "MI210"),
    (r"gaudi3|hl325", "Gaudi3"),
    (r"gaudi|hl225", "Gaudi2"),
    (r"v5p", "TPU-v5p"),
    (r"v5e|v5lite", "TPU-v5e"),
    (r"v6e|trillium", "TPU-v6e"),
    (r"tpuv4|^v4$", "TPU-v4"),
)


def estimated_reach(tflops: float, bandwidth_gb_s: float) -> float:
    """Return the attainable share of the peak where nobody has measured it.

    The more arithmetic a GPU has for its bandwidth, the smaller the share that matrix products attain; the line
    through the measured parts (A100 0.87 at 153 FLOP a byte, H100 0.80 at 295) has the exponent -0.13.
    """
    balance = tflops * 1e3 / bandwidth_gb_s
    return float(min(0.97, max(0.5, 0.87 * (balance / 153.0) ** -0.13)))


def full_precision(gpu: Gpu) -> float:
    """Return the peak TFLOP/s in 32 bits; where no sheet says, a sixteenth of the 16-bit peak, as on the A100."""
    return gpu.fp32 or gpu.tflops / 16.0


# "1g.5gb": compute slices and memory (NVIDIA MIG user guide, supported profiles)
_PROFILE = re.compile(r"(?<![0-9a-z])([12347])g[.-](\d+)gb")
_MEMORY_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}


def _slice(whole: Gpu, compute: int, memory_gib: float) -> Gpu:
    """Return the sheet of a MIG slice: of 7 compute and 8 memory slices (4 and 4 of an A30), no link to others."""
    four = whole.name == "A30"
    part = min(1.0, compute / (4.0 if four else 7.0))
    bandwidth = part if four else _MEMORY_EIGHTHS[compute] / 8.0
    return replace(
        whole, name=f"{whole.name}:{compute}g.{memory_gib:.0f}gb", tflops=whole.tflops * part,
        fp32=whole.fp32 * part, fp8=whole.fp8 * part, fp4=whole.fp4 * part, memory_gib=memory_gib,
        bandwidth_gb_s=whole.bandwidth_gb_s * bandwidth, link_gb_s=12, net_gb_s=6, node=1,
        source=f"{whole.source}; share of a MIG profile", part=part,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def find(name: str) -> tuple[Gpu, bool]:
    """Return the data sheet for a GPU type's name, however it is spelled, and whether one was found.

    ``"NVIDIA A100-SXM4-80GB"``, ``"a100"`` and ``"A100-80GB"`` are one type; ``"nvidia_a100_1g.5gb"`` is a slice of it.
    A name without a sheet (or an empty one) gives :data:`UNKNOWN` and False, a MIG profile without its GPU a slice of
    :data:`UNKNOWN` and False.
    """
    if name in BY_NAME:
        return BY_NAME[name], True
    lowered = name.lower().replace("_", "-")
    profile = _PROFILE.search(lowered)
    if profile:
        whole, known = find(lowered[: profile.start()])
        return _slice(whole, int(profile[1]), float(profile[2])), known
    dashed = re.sub(r"[^a-z0-9]+", "-", lowered).strip("-")
    squeezed = dashed.replace("-", "")
    for pattern, sheet in _RULES:
        if dashed and (re.search(pattern, dashed) or re.search(pattern, squeezed)):
            return BY_NAME[sheet], True
    return UNKNOWN, False
