"""Sections of the pipeline-parallel plugin: the person's and the framework profile's."""

from __future__ import annotations

from attrs import field, frozen, validators

from autopar_core.api import TransientTensor


@frozen(kw_only=True)
class PpConfig:
    """``[plugins.pp]`` of an input file.

    Attributes:
        max_chunks: Largest number of virtual stages per rank that is tried when none is named.
    """

    max_chunks: int = field(default=8, validator=validators.ge(2))


@frozen(kw_only=True)
class PpProfile:
    """``[pp]`` of a framework profile.

    Attributes:
        schedules: Schedules that the framework has.
        blocking: Messages of the plain schedules are coupled sends that occupy their sender
            (Megatron without interleaving).
        empty_stages: A stage may hold no layer (only the embedding or the head).
        fill_pipeline: Plain 1F1B requires at least as many micro-batches as stages.
        interleaved_whole_rounds: Interleaving needs micro-batches in whole rounds of the ranks.
        partitions: ``any`` (every stage its own count) or ``even`` (layers divide evenly).
        receive_buffers: One receive buffer per micro-batch and edge stays allocated (torch).
        keeps_outputs: A stage's output lives until its backward, its input is the receive buffer.
        keeps_sent_gradient: The gradient sent last stays alive in plain 1F1B.
        memory: Further tensors where there are several stages.
        communicator_bytes: Buffers of the communicators, outside the allocator.
    """

    schedules: tuple[str, ...] = ("1f1b", "interleaved", "gpipe")
    blocking: bool = False
    empty_stages: bool = False
    fill_pipeline: bool = False
    interleaved_whole_rounds: bool = True
    partitions: str = "any"
    receive_buffers: bool = False
    keeps_outputs: bool = False
    keeps_sent_gradient: bool = False
    memory: tuple[TransientTensor, ...] = ()
    communicator_bytes: int = 0
