"""Framework, sharding and context parallelism of a configuration; the rest of the job by subject."""

from __future__ import annotations

from autopar_core.api import FORMAT_DEFAULT, Findings, InputError
from autopar_torchtitan.degrees import CONTEXT, PIPELINE, REPLICATE, SHARD, Degrees, read_degrees
from autopar_torchtitan.read_batch import read_batch, read_length
from autopar_torchtitan.read_precision import read_precision
from autopar_torchtitan.settings import TOML, Settings


RESHARD = "parallelism.fsdp_reshard_after_forward"
ROTATE = "parallelism.context_parallel_rotate_method"


def read_job(settings: Settings, found: Findings) -> Degrees:
    """Put training, cluster, framework and the parts of the strategy that need no layers.

    Raises:
        InputError: For what TorchTitan refuses or takes for something else, with what is legal.
    """
    degrees = read_degrees(settings, found)
    length = read_length(settings, degrees, found)
    read_precision(settings, found)
    read_batch(settings, degrees, length, found)
    _framework(settings, degrees, found)
    _sharding(settings, degrees, found)
    _context(settings, degrees, found)
    return degrees


def _framework(settings: Settings, degrees: Degrees, found: Findings) -> None:
    place = settings.place("compile.enable")
    name = "torchtitan-compile" if settings.compiles else "torchtitan"
    found.put(
        "framework.name",
        name,
        f"{place}: the model is {'' if settings.compiles else 'not '}compiled",
    )
    if settings.flag("compile.enable") and not settings.compiles:
        found.note(f"compile.components ({settings.place('compile.components')}) leaves the model eager; "
                   "it is estimated so")  # fmt: skip
    key = "parallelism.enable_async_tensor_parallel"
    key = key if key in settings else "compile.enable_async_tensor_parallel"
    if settings.flag(key):
        if not settings.compiles:
            _eager_async(settings, key, found)
        elif degrees.tensor > 1:
            found.note(f"async tensor parallelism ({settings.place(key)}) hides collectives behind their "
                       "products; it is estimated without")  # fmt: skip
    if settings.dialect != TOML and degrees.pipeline > 1:
        graphs = "training.disable_cuda_graphs"
        if not settings.flag(graphs):
            raise settings.wrong(
                graphs, f"TorchTitan refuses CUDA graphs with {degrees.pipeline} pipeline stages "
                f"({settings.place(PIPELINE)}); set training.disable_cuda_graphs = True",
            )  # fmt: skip
    if degrees.tensor > 1:
        parallel, where = True, f"{FORMAT_DEFAULT}: always with tp"
        if settings.dialect != TOML:
            name = "parallelism.enable_sequence_parallel"
            parallel, where = settings.flag(name), settings.place(name)
        found.put("strategy.sequence_parallel", parallel, where)
    if settings.flag("parallelism.disable_loss_parallel"):
        found.note("disable_loss_parallel "
        f"({settings.place('parallelism.disable_loss_parallel')}): logits "
                   "are gathered over tp; they are estimated split")  # fmt: skip


def _eager_async(settings: Settings, key: str, found: Findings) -> None:
    """Refused by the configuration class since 0.3.0, and before only when training starts."""
    both = (
        f"async tensor parallelism ({settings.place(key)}) needs a compiled model, and compile.enable is "
        f"{settings.flag('compile.enable')} ({settings.place('compile.enable')})"
    )
    if settings.dialect != TOML:
        raise InputError(settings.label, f"{both}; set it, or leave async out")
    found.note(f"{both}: TorchTitan stops at the start; it is estimated without both")


def _sharding(settings: Settings, degrees: Degrees, found: Findings) -> None:
    """FSDP2 shards parameters over shard x cp; releases up to 0.2.2 use DDP where that is one rank."""
    policy = settings.choice(RESHARD, "default", "always", "never")
    stage = 2 if policy == "never" and degrees.pipeline == 1 else 3
    if not degrees.shard:
        # Every device that is left shards; how many there are is known elsewhere.
        found.put("strategy.zero_stage", stage, settings.place(RESHARD))
        found.put("strategy.replicate_degree", degrees.replicate, settings.place(REPLICATE))
        return
    if degrees.data * degrees.context == 1:
        return
    if degrees.shard * degrees.context == 1:
        others = degrees.tensor * degrees.pipeline
        if settings.dialect == TOML and others > 1:
            raise settings.wrong(
                REPLICATE, f"{degrees.replicate} replicas without sharding are DDP, which "
                "TorchTitan does not "
                f"combine with tp {degrees.tensor} and pp {degrees.pipeline}; write "
                f"data_parallel_shard_degree = {degrees.replicate} instead",
            )  # fmt: skip
        found.put("strategy.zero_stage", 0, settings.place(SHARD))
        return
    found.put("strategy.zero_stage", stage, settings.place(RESHARD))
    if policy == "always" and degrees.pipeline > 1:
        found.note(f"{RESHARD} = always ({settings.place(RESHARD)}) gathers for every micro-batch; it is "
                   "estimated as default, which gathers once a step")  # fmt: skip
    found.put("strategy.shard_degree", degrees.shard, settings.place(SHARD))
    found.put("strategy.replicate_degree", degrees.replicate, settings.place(REPLICATE))


def _context(settings: Settings, degrees: Degrees, found: Findings) -> None:
    if degrees.context == 1:
        return
    flavor = settings.text("model.flavor")
    backend = settings.get("model.attn_backend") or ("varlen" if "varlen" in flavor else "")
    if settings.dialect == TOML:
        if backend == "varlen":
            raise settings.wrong(
                "model.flavor", f"varlen attention does not run with cp {degrees.context} "
                f"({settings.place(CONTEXT)}); use {flavor.partition('_')[0]}",
            )  # fmt: skip
        method = settings.choice(ROTATE, "allgather", "alltoall")
        kind = "all_gather" if method == "allgather" else "p2p"
        found.put("strategy.cp_comm_type", kind, settings.place(ROTATE))
        return
    if backend in ("sdpa", "varlen"):
        raise settings.wrong(
            "model.attn_backend", f"{backend} attention does not run with cp {degrees.context} "
            f"({settings.place(CONTEXT)}); use flex",
        )  # fmt: skip
    key = "parallelism.spmd_backend"
    if settings.choice(key, "spmd_types", "full_dtensor", "partial_dtensor") != "spmd_types":
        raise settings.wrong(
            key, f"cp {degrees.context} ({settings.place(CONTEXT)}) needs spmd_types"
        )
    found.put("strategy.cp_comm_type", "all_gather", "inferred: keys and values are gathered")
