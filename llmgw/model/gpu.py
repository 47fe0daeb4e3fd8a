"""GPUs as a probe reports them: cards, what runs on them, their vendors' drivers, and what went wrong with them.

Sizes in bytes, temperatures in °C, power in watts. `None` means that it could not be read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmgw.model.base import Report

MAX_GPUS = 1024


class Slice(Report):
    """A MIG instance: a part of a GPU that is one to its users."""

    uuid: str
    name: str | None = None
    """Its profile, `1g.10gb`."""
    memory_total: int | None = Field(default=None, ge=0)


class Pcie(Report):
    """The link as it is now and as it could be. An idle card may have trained its link down to save power."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None


class Gpu(Report):
    index: int | None = None
    """Place in PCI order among the cards that the vendor's tool lists; None for a card that the tool does not show."""
    vendor: str
    """`nvidia`, `amd`, `intel` or `other`."""
    uuid: str | None = None
    name: str | None = None
    pci: str | None = None
    """`0000:01:00.0`: lower case, four digits of domain."""
    memory_kind: Literal["dedicated", "unified", "shared", "unknown"] = "unknown"
    """`unified`: the machine's memory is the card's too. Either it has none of its own and `memory_total` is the
    machine's (GB10, Jetson), or both are one address space and `memory_total` is what the card has of it (GH200).
    `shared`: a carve-out and what the driver may map beside it."""
    memory_total: int | None = Field(default=None, ge=0)
    memory_used: int | None = Field(default=None, ge=0)
    utilization: float | None = None
    temperature: float | None = None
    power_w: float | None = None
    driver: str | None = None
    compute_capability: str | None = None
    architecture: str | None = None
    """AMD's name of the instruction set, `gfx942`."""
    mig: bool | None = None
    slices: tuple[Slice, ...] = Field(default=(), max_length=64)
    persistence: bool | None = None
    ecc_uncorrected: int | None = Field(default=None, ge=0)
    """Uncorrected errors of its memory since the driver was loaded."""
    pcie: Pcie | None = None
    numa: int | None = Field(default=None, ge=0)
    fabric_state: str | None = None
    """Whether it has joined its NVLink fabric: `Completed`, `In Progress`, `Not Started` (nvidia-smi -q)."""
    health: Literal["ok", "lost", "error"] | None = None
    health_detail: str | None = None
    integrated: bool | None = None
    """It is a part of the CPU's package."""


class GpuProcess(Report):
    gpu: str | None = None
    """`uuid` of the card or of the slice."""
    pid: int
    user: str | None = None
    name: str | None = None
    memory: int | None = Field(default=None, ge=0)
    owner: Literal["ours", "theirs", "orphan"] = "theirs"
    replica: str | None = None


class ToolError(Report):
    """Why a tool gave no answer, in its own words."""

    code: Literal["hangs", "mismatch", "failed", "nothing"]
    text: str = ""


class Card(Report):
    """A card on PCI, whether its vendor's driver knows it or not."""

    pci: str
    device_id: str | None = None
    """As the kernel has it, `0x2330`."""
    driver: str | None = None
    """The kernel driver bound to it: `nvidia`, `nouveau`, `vfio-pci`, `amdgpu`, …; None where none is."""


class FabricManager(Report):
    needed: bool = False
    """NVSwitches are there, or cards that NVIDIA joins by them: no CUDA before it has run."""
    running: bool | None = None
    version: str | None = None


class Imex(Report):
    """The service that shares memory between machines of one NVLink domain (GB200 and later)."""

    needed: bool = False
    running: bool | None = None


class Nvidia(Report):
    driver: str | None = None
    """Version that nvidia-smi names."""
    kernel_module: str | None = None
    """Version of the loaded module."""
    library: str | None = None
    """Version of libcuda as it lies on disk."""
    cuda: str | None = None
    """The CUDA level that the driver serves at most."""
    smi: str | None = None
    """The nvidia-smi that was asked."""
    smi_error: ToolError | None = None
    warnings: tuple[str, ...] = Field(default=(), max_length=64)
    """What it printed beside its answer."""
    cards: tuple[Card, ...] = Field(default=(), max_length=MAX_GPUS)
    nvswitches: int = Field(default=0, ge=0)
    fabric_manager: FabricManager = FabricManager()
    imex: Imex = Imex()
    peermem: bool | None = None
    """GPUDirect RDMA by a module of its own (nvidia_peermem or nv_peer_mem)."""


class Amd(Report):
    driver_loaded: bool | None = None
    rocm: str | None = None
    cards: tuple[Card, ...] = Field(default=(), max_length=MAX_GPUS)


class Intel(Report):
    driver_loaded: bool | None = None
    cards: tuple[Card, ...] = Field(default=(), max_length=MAX_GPUS)


class Xid(Report):
    """An error that NVIDIA's driver wrote into the kernel's log: one entry a card and number."""

    pci: str | None = None
    xid: int
    kind: Literal["xid", "sxid"] = "xid"
    """`sxid`: of an NVSwitch."""
    count: int = Field(default=1, ge=1)
    last_s_ago: float | None = None
    text: str = ""
