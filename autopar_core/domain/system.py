"""What differs between machines: peaks, sustained rates, memory, links."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen, validators

from autopar_core.domain.precision import SIXTEEN_BIT


_POSITIVE = validators.gt(0)
_NOT_NEGATIVE = validators.ge(0.0)
_SHARE = validators.and_(validators.gt(0), validators.le(1))


@frozen(kw_only=True)
class FormatLaw:
    """A number format below 16 bits.

    Attributes:
        speed: Sustained rate of products over the sustained bf16 rate of the same device, casts aside.
        transposes: Products read both operands along the inner dimension only, so that a cast for the
            forward needs a transposed copy for the backward (fp8 on Hopper).
        uncertainty: Half-width of the band that this ratio adds to a step time, as a share.
    """

    speed: float = field(validator=validators.ge(1.0))
    transposes: bool = False
    uncertainty: float = field(default=0.0, validator=_NOT_NEGATIVE)


@frozen(kw_only=True)
class GemmLaw:
    """Seconds = launch + 2 M N K / (efficiency peak) (1 + k0 / K); ``formats`` by name (fp8, ...).

    ``tile`` (rows, columns) of the output that one compute unit works on: from a full wave of tiles on,
    the last wave takes as long as the others. Zeros where waves do not show (split or streamed K).
    """

    efficiency: float = field(validator=_SHARE)
    k0: float = field(default=0.0, validator=_NOT_NEGATIVE)
    tile: tuple[int, int] = (0, 0)
    formats: Mapping[str, FormatLaw] = field(factory=dict)


@frozen(kw_only=True)
class KernelLaw:
    """Gap per kernel when the device is the bottleneck, seconds."""

    launch_seconds: float = field(validator=_NOT_NEGATIVE)


@frozen(kw_only=True)
class MemoryLaw:
    """Device memory: data-sheet bytes/s and the share that memory-bound kernels reach."""

    bytes_per_second: float = field(validator=_POSITIVE)
    elementwise_efficiency: float = field(validator=_SHARE)


@frozen(kw_only=True)
class AttentionLaw:
    """Fused attention: W/(peak eta) (1 + s0/keys) + tail x longest row block; _f forward, _b backward."""

    eta_f: float
    s0_f: float
    tail_f: float
    eta_b: float
    s0_b: float
    tail_b: float


@frozen(kw_only=True)
class LinkLaw:
    """Seconds of a ring over V bytes = latency + (V + half_bytes) / bytes_per_second.

    ``hop_seconds`` is what every further rank adds to one message of a bucketed collective.
    """

    bytes_per_second: float = field(validator=_POSITIVE)
    latency_seconds: float = field(validator=_NOT_NEGATIVE)
    half_bytes: float = field(default=0.0, validator=_NOT_NEGATIVE)
    hop_seconds: float = field(default=0.0, validator=_NOT_NEGATIVE)
    full_mesh: bool = False


@frozen(kw_only=True)
class Links:
    """``intra``: inside the scale-up domain; ``inter``: one device's share of the network."""

    intra: LinkLaw
    inter: LinkLaw


@frozen(kw_only=True)
class SystemProfile:
    """One kind of accelerator and the machine around it.

    Attributes:
        name: Catalogue name.
        devices_per_domain: Devices in one scale-up domain.
        memory_bytes: Device memory as the driver reports it.
        compute_units: Streaming multiprocessors or what corresponds to them.
        peak_flops: Dense FLOP/s by precision.
        attention: Kernel name -> head dimension ("64", "128") -> law.
        attention_default: Kernel that a framework without an opinion gets.
        sources: Dotted path -> where the number comes from.
        unverified: Dotted paths whose source is a recollection or an analogy.
    """

    name: str
    title: str = ""
    vendor: str = ""
    aliases: tuple[str, ...] = ()
    devices_per_domain: int
    memory_bytes: int
    compute_units: int = field(validator=_POSITIVE)
    peak_flops: Mapping[str, float] = field(
        validator=validators.deep_mapping(value_validator=_POSITIVE)
    )
    gemm: GemmLaw
    kernel: KernelLaw
    memory: MemoryLaw
    attention: Mapping[str, Mapping[str, AttentionLaw]]
    attention_default: str = "flash"
    links: Links
    sources: Mapping[str, str] = field(factory=dict)
    unverified: tuple[str, ...] = ()

    def peak(self, precision: str) -> float:
        """Dense FLOP/s of a number format as the data sheet has it.

        16-bit formats stand in for each other (V100 has no bf16); block-scaled formats run at the rate
        of their element.

        Raises:
            KeyError: When the device lacks it.
        """
        twins = {"bf16": "fp16", "fp16": "bf16", "mxfp8": "fp8", "nvfp4": "fp4"}
        if precision in self.peak_flops:
            return self.peak_flops[precision]
        return self.peak_flops[twins.get(precision, precision)]

    def sustained(self, precision: str) -> float:
        """FLOP/s that large products of a number format reach.

        Raises:
            KeyError: When the device lacks it.
        """
        if precision in SIXTEEN_BIT:
            return self.gemm.efficiency * self.peak(precision)
        return self.gemm.efficiency * self.peak("bf16") * self.speed(precision)

    def speed(self, precision: str) -> float:
        """Sustained rate of products over that of 16-bit formats.

        Raises:
            KeyError: When the device lacks the format.
        """
        return 1.0 if precision in SIXTEEN_BIT else self.gemm.formats[precision].speed
