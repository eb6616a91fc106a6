"""Sections of the tensor-parallel plugin: the person's and the framework profile's."""

from __future__ import annotations

from attrs import field, frozen

from autopar_core.api import LayerHost, TransientTensor


@frozen(kw_only=True)
class TpConfig:
    """``[plugins.tp]`` of an input file; nothing to set yet."""


@frozen(kw_only=True)
class TpProfile:
    """``[tp]`` of a framework profile.

    Attributes:
        sequence_parallel: ``always``, ``optional`` or ``never``.
        kv_replication: More ranks than key/value heads: heads are replicated (Megatron) or refused.
        vocabulary_multiple: The vocabulary is padded to this multiple of the degree; 0 means that
            every rank takes the rounded-up share.
        vocabulary_divides: The framework refuses a vocabulary that the degree does not divide.
        overlap: ``none``, ``bulk`` (re-gathers and reduce-scatters of the backward hide under its
            GEMMs) or ``fraction`` (pipelined with the adjacent GEMM: ``exposed`` of it shows).
        exposed: Measured share that stays exposed with ``fraction``.
        sequence_copy_bytes: Device bytes per element around each sequence collective.
        scatter_gather_messages: Without sequence parallelism, ranks send a share of what passes between
            stages each, and gather it on arrival.
        selective_gathers: Collectives of a forward that selective recompute repeats.
        host: What a split layer costs the host more than a whole one.
        host_pipelined: The same in a pipeline over several scale-up domains, times the degree.
        memory: Tensors that exist where the degree is above one.
        memory_sequence_parallel: Tensors that exist where sequence parallelism is on.
        communicator_bytes: Buffers of the communicators, outside the allocator.
    """

    sequence_parallel: str = "optional"
    kv_replication: bool = True
    vocabulary_multiple: int = 128
    vocabulary_divides: bool = False
    overlap: str = "none"
    exposed: float = 1.0
    sequence_copy_bytes: float = 0.0
    scatter_gather_messages: bool = False
    selective_gathers: int = 0
    host: LayerHost = field(factory=LayerHost)
    host_pipelined: LayerHost = field(factory=LayerHost)
    memory: tuple[TransientTensor, ...] = ()
    memory_sequence_parallel: tuple[TransientTensor, ...] = ()
    communicator_bytes: int = 0
