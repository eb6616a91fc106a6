"""Sections of the data-parallel plugin: the person's and the framework profile's."""

from __future__ import annotations

from attrs import field, frozen

from autopar_core.api import LayerHost, TransientTensor


@frozen(kw_only=True)
class DpConfig:
    """``[plugins.dp]`` of an input file; nothing to set yet."""


@frozen(kw_only=True)
class DpProfile:
    """``[dp]`` of a framework profile.

    Attributes:
        zero_stages: State sharding that the framework has: 0 none (DDP), 1 optimizer states, 2 also
            gradients, 3 also parameters (FSDP).
        hybrid_stages: Stages for which the shard group may be smaller than the data-parallel degree
            (HSDP).
        padded_rows: Shards are cut along the rows of every matrix, each rounded up (FSDP2).
        deferred_in_pipeline: With several stages, parameters stay gathered and gradients are reduced
            once, at the end of the schedule (torch: reshard_after_forward false).
        parameter_bytes: Bytes per gathered parameter.
        gradient_reduce_bytes: Bytes per element of a gradient reduction.
        overlap_gradients: Reductions run under the last micro-batch's backward.
        overlap_parameters: Gathers run under the first micro-batch's forward.
        exposed_stages: Stages whose reductions and gathers run after the backward all the same.
        bucket_bytes: Largest message of a reduction or gather once per step; 0 is one message.
        hidden_share: Part of that backward or forward that can hide them.
        buckets: Reductions per step; the last bucket is always exposed.
        gather_efficiency: Share of a network ring's rate that gathers and reductions per layer reach.
        contention: Slow-down of compute by a concurrent gather, as a share of the overlapped time.
        gather_copy_bytes, reduce_copy_bytes: Device bytes per parameter of copying into and out of
            gather and reduction buffers.
        accumulate_bytes: Device bytes per parameter and micro-batch of adding unsharded gradients.
        host_sharded: Host cost of gathering and reducing a layer, per pass over its parameters.
        memory: Tensors that exist where the degree is above one.
        memory_gathered: Tensors of a sharded-parameter run (stage 3) with one stage.
        memory_gathered_pipelined: The same with several stages.
        memory_reduced: Tensors of a run that reduces gradients with every backward and keeps its
            parameters whole (stage 2).
        memory_hybrid: Tensors of HSDP in later micro-batches.
        communicator_bytes: Buffers of the communicators, outside the allocator.
    """

    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    hybrid_stages: tuple[int, ...] = (3,)
    padded_rows: bool = False
    deferred_in_pipeline: bool = False
    parameter_bytes: float = 2.0
    gradient_reduce_bytes: float = 4.0
    overlap_gradients: bool = True
    overlap_parameters: bool = True
    exposed_stages: tuple[int, ...] = ()
    bucket_bytes: float = 0.0
    hidden_share: float = 0.9
    buckets: int = 8
    gather_efficiency: float = 1.0
    contention: float = 0.1
    gather_copy_bytes: float = 0.0
    reduce_copy_bytes: float = 0.0
    accumulate_bytes: float = 0.0
    host_sharded: LayerHost = field(factory=LayerHost)
    memory: tuple[TransientTensor, ...] = ()
    memory_gathered: tuple[TransientTensor, ...] = ()
    memory_gathered_pipelined: tuple[TransientTensor, ...] = ()
    memory_reduced: tuple[TransientTensor, ...] = ()
    memory_hybrid: tuple[TransientTensor, ...] = ()
    communicator_bytes: int = 0
