"""Devices, batch, precision, sharding of a configuration, with what TorchTitan would refuse."""

from __future__ import annotations

from attrs import frozen

from autopar_core.api import FORMAT_DEFAULT, Findings, InputError
from autopar_torchtitan.settings import TOKENS, TOML, Settings


REPLICATE = "parallelism.data_parallel_replicate_degree"
SHARD = "parallelism.data_parallel_shard_degree"
TENSOR = "parallelism.tensor_parallel_degree"
PIPELINE = "parallelism.pipeline_parallel_degree"
CONTEXT = "parallelism.context_parallel_degree"
RESHARD = "parallelism.fsdp_reshard_after_forward"
ROTATE = "parallelism.context_parallel_rotate_method"
MICRO = "parallelism.pipeline_parallel_microbatch_size"
COUNT, OLD_COUNT = "parallelism.num_pp_microbatches", "parallelism.pipeline_parallel_microbatches"
LOCAL, TOTAL, LENGTH = (
    "training.local_batch_size", "training.global_batch_size", "training.seq_len"
)  # fmt: skip
TOKENS_EACH = "training.num_tokens_per_microbatch_per_dp_rank"
TOKENS_STEP = "training.num_tokens_per_train_step"
TOKENS_LONGEST = "training.max_context_length"
_CONVERTERS = ("float8", "mx", "nvfp4")


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


def read_job(settings: Settings, found: Findings) -> Degrees:
    """Put training, cluster, framework and the parts of the strategy that need no layers.

    Raises:
        InputError: For what TorchTitan refuses or takes for something else, with what is legal.
    """
    degrees = _degrees(settings, found)
    length = _length(settings, degrees, found)
    _precision(settings, found)
    _batch(settings, degrees, length, found)
    _framework(settings, degrees, found)
    _sharding(settings, degrees, found)
    _context(settings, degrees, found)
    return degrees


def _degrees(settings: Settings, found: Findings) -> Degrees:
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
                f"{max(1, world // others) * others} devices"
                if shard == -1
                else f"{shard * others}"
            )
            raise InputError(
                settings.label, f"{world} devices ({place}) are not {said}"
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


def _length(settings: Settings, degrees: Degrees, found: Findings) -> int:
    key = TOKENS_LONGEST if settings.dialect == TOKENS else LENGTH
    if key == TOKENS_LONGEST and key not in settings:
        raise InputError(settings.label, f"has no {key}; give the tokens of a sequence there")
    length = settings.whole(key)
    found.put("training.seq_len", length, settings.place(key))
    parallel = settings.dialect == TOML or settings.flag("parallelism.enable_sequence_parallel")
    parts = (degrees.tensor if parallel else 1) * (
        2 * degrees.context if degrees.context > 1 else 1
    )
    if length % parts:
        near = max(parts, length // parts * parts)
        raise settings.wrong(
            key, f"{length} tokens do not divide by {parts} (tp {degrees.tensor} of sequence parallelism "
            f"x 2 x cp {degrees.context}); nearest legal: {near} and {near + parts}",
        )  # fmt: skip
    longest = found.get("model.max_position_embeddings")
    if length > longest and settings.dialect != TOML:
        raise settings.wrong(
            key,
            f"{length} tokens are more than the {longest} of the model's RoPE table; at most {longest}",
        )
    return length


def _precision(settings: Settings, found: Findings) -> None:
    key, converters = "training.precision", "model.converters"
    plain = settings.choice("training.mixed_precision_param", "bfloat16", "float32")
    names = [each.rpartition(".")[2] for each in settings.names(converters)]
    strange = next((name for name in names if name not in _CONVERTERS), None)
    if strange is not None:
        raise settings.wrong(converters, f"{strange!r:.40} is no converter that autopar knows; it knows "
                             f"{', '.join(_CONVERTERS)}")  # fmt: skip
    if len(names) > 1:
        raise settings.wrong(converters, f"{' and '.join(names)} exclude each other; keep one")
    if names:
        name = f"quantize.linear.{names[0]}.recipe_name"
        place = settings.place(converters)
        place += f"; {settings.place(name)}" if name in settings else ""
        found.put(key, _recipe(settings, names[0], found), place)
    else:
        place = settings.place("training.mixed_precision_param")
        found.put(key, "bf16" if plain == "bfloat16" else "fp32", place)
        unused = [k for k in ("float8", "mx") if f"quantize.linear.{k}.recipe_name" in settings]
        if unused:
            found.note(
                f"[quantize.linear.{unused[0]}] has no effect: model.converters does not name it"
            )
    if settings.choice("training.dtype", "float32", "bfloat16") == "bfloat16":
        raise settings.wrong(
            "training.dtype", "bfloat16 keeps parameters, gradients and optimizer states in 16 "
            "bits, which autopar does not price; write float32",
        )  # fmt: skip
    if settings.flag("training.enable_cpu_offload"):
        raise settings.wrong(
            "training.enable_cpu_offload", "autopar does not price states on the host; write false"
        )


def _recipe(settings: Settings, name: str, found: Findings) -> str:
    """The recipe of a converter; one that no profile offers keeps its name, and the core refuses it."""
    key = f"quantize.linear.{name}.recipe_name"
    said = settings.text(key) if key in settings else ""
    if name == "nvfp4":
        return "nvfp4"
    if name == "mx":
        return (said or "mxfp8").partition("_")[0]
    gathers = "quantize.linear.float8.enable_fsdp_float8_all_gather"
    gathered = gathers in settings and settings.flag(gathers)
    if said and gathered and settings.dialect == TOML:
        raise InputError(
            settings.label,
            f"{gathers} ({settings.place(gathers)}) and recipe_name = {said} "
            f"({settings.place(key)}) exclude each other; keep one of them",
        )
    # Nothing said: torchao's own configuration up to 0.2.2, the field's default since 0.3.0.
    recipe = f"fp8-{said or ('tensorwise' if settings.dialect == TOML else 'rowwise'):.40}"
    if gathered:
        found.note(
            f"weights are gathered in fp8 ({settings.place(gathers)}); they are estimated in 16 bits"
        )
    return recipe


def _batch(settings: Settings, degrees: Degrees, length: int, found: Findings) -> None:
    if settings.dialect == TOKENS:
        size, number, total, place = _from_tokens(settings, degrees, length, found)
    else:
        size, number, total, place = _from_sequences(settings, degrees, found)
    if number:
        found.put("strategy.micro_batch_num", number, place)
    if total:
        found.put("training.global_batch_size", total, place)
    elif number:
        found.note(
            f"the global batch is {size * number} sequences for every data-parallel rank; give "
            "training.global_batch_size"
        )


def _from_sequences(
    settings: Settings, degrees: Degrees, found: Findings
) -> tuple[int, int, int, str]:
    """(sequences of a micro-batch, micro-batches, global batch, place); 0 where it is left open."""
    local, place = settings.whole(LOCAL), settings.place(LOCAL)
    size, number = local, 1
    if degrees.pipeline > 1:
        size, number, place = _pipelined(settings, degrees, local)
        found.put("strategy.micro_batch_size", size, place)
    else:
        found.put("strategy.micro_batch_size", size, place)
    total = settings.typed(TOTAL, int)
    if total < 0:
        return size, number, local * degrees.data, f"inferred: one local batch ({place}) per rank"
    if not total or (degrees.data and total % (local * degrees.data)):
        each = local * max(1, degrees.data)
        raise settings.wrong(
            TOTAL, f"global batch {total} does not divide by local batch {local} "
            f"({settings.place(LOCAL)}) "
            f"x dp {degrees.data}; nearest legal: {max(each, total // each * each)}",
        )  # fmt: skip
    found.put("training.global_batch_size", total, settings.place(TOTAL))
    if not degrees.data:
        return size, 0, 0, ""
    steps = total // (local * degrees.data)
    _drains(settings, degrees, number, steps, found)
    return size, number * steps, total, settings.place(TOTAL)


def _pipelined(settings: Settings, degrees: Degrees, local: int) -> tuple[int, int, str]:
    """(sequences of a micro-batch, micro-batches of the pipeline, place)."""
    old = settings.dialect == TOML and MICRO not in settings and (
        OLD_COUNT in settings or "parallelism.pipeline_parallel_split_points" in settings
    )  # fmt: skip
    if old:
        # Releases before 0.2 count micro-batches, as many as stages by default.
        number = settings.whole(OLD_COUNT) if OLD_COUNT in settings else degrees.pipeline
        if local % number:
            raise settings.wrong(
                LOCAL, f"local batch {local} does not divide into {number} micro-batches; nearest legal: "
                f"{max(1, local // number) * number}",
            )  # fmt: skip
        return local // number, number, settings.place(LOCAL)
    size = settings.whole(MICRO)
    if local % size:
        raise settings.wrong(
            MICRO if MICRO in settings else LOCAL, f"local batch {local} ({settings.place(LOCAL)}) does "
            f"not divide by {size}; nearest legal: {LOCAL} = {max(1, local // size) * size}",
        )  # fmt: skip
    return size, local // size, settings.place(MICRO)


def _drains(settings: Settings, degrees: Degrees, number: int, steps: int, found: Findings) -> None:
    """Accumulated steps fill and drain the pipeline once each."""
    if degrees.pipeline > 1 and steps > 1:
        key = COUNT if settings.dialect == TOKENS else LOCAL
        found.note(
            f"the pipeline fills and drains {steps} times in a step, with {number} micro-batches "
            f"each; it is estimated as one of {number * steps}, which {key} times {steps} would run"
        )


def _from_tokens(
    settings: Settings, degrees: Degrees, length: int, found: Findings
) -> tuple[int, int, int, str]:
    if TOKENS_EACH not in settings:
        raise InputError(settings.label, f"has no {TOKENS_EACH}; give the tokens of a micro-batch")
    each, place = settings.whole(TOKENS_EACH), settings.place(TOKENS_EACH)
    if each % length:
        raise settings.wrong(
            TOKENS_EACH, f"{each} tokens are not whole sequences of {length}; nearest legal: "
            f"{max(1, each // length) * length}",
        )  # fmt: skip
    size = each // length
    found.put("strategy.micro_batch_size", size, place)
    number = settings.whole(COUNT) if degrees.pipeline > 1 and COUNT in settings else 1
    total = settings.get(TOKENS_STEP)
    if total is None or (type(total) is int and total < 0):
        return size, number, size * number * degrees.data, f"inferred: one micro-batch ({place})"
    step = settings.whole(TOKENS_STEP)
    share = each * number * max(1, degrees.data)
    if step % share:
        raise settings.wrong(
            TOKENS_STEP, f"{step} tokens do not divide by {each} ({place}) x {number} micro-batches x dp "
            f"{degrees.data}; nearest legal: {max(share, step // share * share)}",
        )  # fmt: skip
    if not degrees.data:
        found.put("training.global_batch_size", step // length, settings.place(TOKENS_STEP))
        return size, 0, 0, ""
    steps = step // share
    _drains(settings, degrees, number, steps, found)
    return size, number * steps, step // length, settings.place(TOKENS_STEP)


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
