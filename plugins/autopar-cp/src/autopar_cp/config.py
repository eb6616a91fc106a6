"""Sections of the context-parallel plugin: the person's and the framework profile's."""

from __future__ import annotations

from attrs import field, frozen, validators

from autopar_core.api import LayerHost, TransientTensor


COMM_TYPES = ("p2p", "all_gather", "a2a")


@frozen(kw_only=True)
class CpConfig:
    """``[plugins.cp]`` of an input file.

    Attributes:
        comm_type: Only this way of exchanging keys and values is tried; empty tries all that the
            framework has.
    """

    comm_type: str = field(default="", validator=validators.in_(("", *COMM_TYPES)))


@frozen(kw_only=True)
class MergeCost:
    """Device traffic of merging the partial results of a ring, per step.

    Bytes per element of one partial result (half of the rank's queries) and per key/value element.
    """

    forward: float = 10.0
    backward: float = 6.0
    backward_key_value: float = 8.0
    kernels_forward: int = 2
    kernels_backward: int = 2


@frozen(kw_only=True)
class CpProfile:
    """``[cp]`` of a framework profile.

    Attributes:
        comm_types: Ways the framework has, the preferred one first.
        balanced: Causal work is balanced (zig-zag or head-tail order of the sequence chunks).
        gathered_as_ring: Gathered keys are still used in steps, one attention call per rank's share
            (torch's all-gather rotation).
        merge: Traffic of merging ring steps.
        host: What a split layer costs the host more than a whole one.
        host_ring: The same for every further step of a ring.
        memory: Tensors where the degree is above one, whatever the way.
        memory_by_type: Further tensors by way.
        gathered_key_value_bytes: Bytes per key/value element and rank of the group that exist
            during attention when keys and values are gathered.
        communicator_bytes: Buffers of the communicators, outside the allocator.
    """

    comm_types: tuple[str, ...] = COMM_TYPES
    balanced: bool = True
    gathered_as_ring: bool = False
    merge: MergeCost = MergeCost()
    host: LayerHost = field(factory=LayerHost)
    host_ring: LayerHost = field(factory=LayerHost)
    memory: tuple[TransientTensor, ...] = ()
    memory_by_type: dict[str, tuple[TransientTensor, ...]] = field(factory=dict)
    gathered_key_value_bytes: float = 4.0
    communicator_bytes: int = 0
