"""Parallel degrees of a configuration, and whether they make up its devices."""

from __future__ import annotations

from attrs import frozen

from autopar_core.api import Findings, InputError, counted
from autopar_torchtitan.settings import Settings


REPLICATE = "parallelism.data_parallel_replicate_degree"
SHARD = "parallelism.data_parallel_shard_degree"
TENSOR = "parallelism.tensor_parallel_degree"
PIPELINE = "parallelism.pipeline_parallel_degree"
CONTEXT = "parallelism.context_parallel_degree"


@frozen
class Degrees:
    """Degrees; ``data`` and ``shard`` are 0 where the file leaves them to the number of devices."""

    tensor: int
    pipeline: int
    context: int
    replicate: int
    shard: int

    @property
    def data(self) -> int:
        """Data-parallel ranks."""
        return self.replicate * self.shard


def read_degrees(settings: Settings, found: Findings) -> Degrees:
    """Put the degrees and the number of devices.

    Raises:
        InputError: When the devices are not their product.
    """
    tensor, pipeline, context = (settings.whole(key) for key in (TENSOR, PIPELINE, CONTEXT))
    replicate = settings.whole(REPLICATE)
    shard = settings.typed(SHARD, int)
    if shard < 1 and shard != -1:
        raise settings.wrong(
            SHARD, f"must be 1 or more, or -1 for all ranks that are left, got {shard}"
        )
    for name, value, key in (
        ("tp_degree", tensor, TENSOR), ("pp_degree", pipeline, PIPELINE),
        ("cp_degree", context, CONTEXT),
    ):  # fmt: skip
        found.put(f"strategy.{name}", value, settings.place(key))
    others = tensor * pipeline * context * replicate
    said = f"replicate {replicate} x cp {context} x tp {tensor} x pp {pipeline}"
    if settings.devices is not None:
        world, place = settings.devices
        found.put("cluster.devices", world, place)
        rest = world // others if shard == -1 else shard
        if not rest or rest * others != world:
            legal = (
                f"{counted(max(1, world // others) * others, 'device')}"
                if shard == -1
                else f"{shard * others}"
            )
            raise InputError(
                settings.label, f"{counted(world, 'device')} ({place}) cannot be {said}"
                f"{'' if shard == -1 else f' x shard {shard}'} ({settings.place(SHARD)}); legal "
                f"is {legal}",
            )  # fmt: skip
        shard = rest
    elif shard != -1:
        found.put("cluster.devices", shard * others, "inferred: product of the degrees")
    if shard == -1:
        found.note(
            f"data_parallel_shard_degree = -1 ({settings.place(SHARD)}) takes the devices that {said} "
            "leave; give cluster.devices"
        )
        return Degrees(tensor, pipeline, context, replicate, 0)
    degrees = Degrees(tensor, pipeline, context, replicate, shard)
    found.put("strategy.dp_degree", degrees.data, f"{settings.place(SHARD)}: replicate x shard")
    return degrees
