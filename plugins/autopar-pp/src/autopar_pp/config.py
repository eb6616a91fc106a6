"""Sections of the pipeline-parallel plugin: the person's and the framework profile's."""

from __future__ import annotations

from attrs import field, frozen, validators

from autopar_core.api import TransientTensor


PARTITIONS = ("any", "even", "ends")


@frozen(kw_only=True)
class PpConfig:
    """``[plugins.pp]`` of an input file.

    Attributes:
        max_chunks: Largest number of virtual stages per rank that is tried when none is named.
        group_size: Micro-batches that interleaving runs on one chunk in a row, Megatron's
            ``microbatch_group_size_per_vp_stage``; 0 for the framework's default.
    """

    max_chunks: int = field(default=8, validator=validators.ge(2))
    group_size: int = field(default=0, validator=validators.ge(0))


@frozen(kw_only=True)
class PpProfile:
    """``[pp]`` of a framework profile.

    Attributes:
        schedules: Schedules that the framework has.
        tried_schedules: Those among them that are tried when none is named; all by default. What
            is left out was never measured here.
        blocking: Messages of the plain schedules are coupled exchanges that occupy both ranks
            (Megatron without interleaving).
        group_sizes: Interleaving can be told its group size (Megatron).
        empty_stages: Any stage may hold no layer.
        empty_ends: The first and the last stage may hold no layer (MindFormers from 2.1).
        fill_pipeline: Plain 1F1B requires at least as many micro-batches as stages.
        fill_v_shape: ZBV requires two micro-batches per rank (MindFormers).
        interleaved_whole_rounds: Interleaving needs micro-batches in whole rounds of the ranks.
        partitions: ``any`` (every stage its own count: Megatron's layouts, torchtitan's module
            lists, MindFormers' offsets), ``even`` (layers divide evenly), ``ends`` (first and last
            stage their own count, or a place each for the embedding and the loss, the others
            alike: Megatron before layouts). A framework that splits by itself has a plugin that
            answers ``autopar_partitions``.
        receive_buffers: One receive buffer per micro-batch and edge stays allocated (torch).
        keeps_outputs: A stage's output lives until its backward, its input is the receive buffer.
        keeps_sent_gradient: The gradient sent last stays alive in plain 1F1B.
        memory: Further tensors where there are several stages.
        communicator_bytes: Buffers of the communicators, outside the allocator.
    """

    schedules: tuple[str, ...] = ("1f1b", "interleaved", "gpipe")
    tried_schedules: tuple[str, ...] = ()
    blocking: bool = False
    group_sizes: bool = False
    empty_stages: bool = False
    empty_ends: bool = False
    fill_pipeline: bool = False
    fill_v_shape: bool = False
    interleaved_whole_rounds: bool = True
    partitions: str = field(default="any", validator=validators.in_(PARTITIONS))
    receive_buffers: bool = False
    keeps_outputs: bool = False
    keeps_sent_gradient: bool = False
    memory: tuple[TransientTensor, ...] = ()
    communicator_bytes: int = 0
