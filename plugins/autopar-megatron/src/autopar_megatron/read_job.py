"""Batch, precision, devices and strategy of a Megatron run, with what its parser would refuse."""

from __future__ import annotations

from autopar_core.api import FORMAT_DEFAULT, Findings, InputError, counted
from autopar_megatron.launch import Launch
from autopar_megatron.plan import CURRENT, DELAYED
from autopar_megatron.read_model import Shape
from autopar_megatron.read_pipeline import read_pipeline, read_virtual_stages
from autopar_megatron.settings import Settings, fp8_recipe
from autopar_megatron.sizes import Batch, Degrees


_ALGORITHMS = {
    "megatron_cp_algo": "p2p",
    "ulysses_cp_algo": "a2a",
    "kvallgather_cp_algo": "all_gather",
}
_EXCHANGES = {"p2p": "p2p", "a2a": "a2a", "all_gather": "all_gather", "allgather": "all_gather"}
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_MIXED = {
    "bf16_mixed": "bf16", "fp16_mixed": "fp16", "bf16_with_fp8_current_scaling_mixed": CURRENT,
    "bf16_with_fp8_delayed_scaling_mixed": DELAYED, "bf16_with_fp8_mixed": DELAYED,
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8-blockwise",
    "bf16_with_mxfp8_mixed": "mxfp8", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
# --fp8-recipe -> recipe; what no profile offers keeps its name, and the core refuses it.
_RECIPES = {"delayed": DELAYED, "tensorwise": CURRENT, "mxfp8": "mxfp8"}


def read_job(launch: Launch, shape: Shape | None, found: Findings) -> None:
    """Put training, cluster, framework and strategy.

    Raises:
        InputError: For what Megatron refuses, with a legal alternative, and for contradictions.
    """
    settings = launch.settings
    if settings.first("schedules_method"):
        raise settings.wrong("schedules_method", "autopar has no DualPipe-V schedule; it has 1F1B "
                             "and interleaved 1F1B")  # fmt: skip
    degrees = _degrees(launch, found)
    seq = _sequence(settings, degrees, found)
    _precision(settings, found)
    batch = _batch(settings, degrees, seq, found)
    _framework(settings, shape, degrees, found)
    _sharding(settings, degrees, found)
    _exchange(settings, degrees, found)
    if shape is None:
        read_virtual_stages(settings, found)
    else:
        read_pipeline(settings, degrees, batch, found)


def _degrees(launch: Launch, found: Findings) -> Degrees:
    settings = launch.settings
    made = []
    for field, name in (("tp_degree", "tensor_model_parallel_size"),
                        ("pp_degree", "pipeline_model_parallel_size"),
                        ("cp_degree", "context_parallel_size")):  # fmt: skip
        made.append(settings.whole_or(name, 1))
        found.put(f"strategy.{field}", made[-1], settings.place(name) or FORMAT_DEFAULT)
    tensor, pipeline, context = made
    product = tensor * pipeline * context
    if not launch.devices:
        return Degrees(tensor, pipeline, context, 0)
    found.put("cluster.devices", launch.devices, launch.devices_place)
    if launch.devices % product:
        near = max(product, launch.devices // product * product)
        raise InputError(
            settings.label, f"{counted(launch.devices, 'device')} ({launch.devices_place}) "
            f"cannot be divided by tp "
            f"{tensor} x pp {pipeline} x cp {context} = {product}; legal is {counted(near, 'device')}",
        )  # fmt: skip
    data = launch.devices // product
    found.put("strategy.dp_degree", data, "inferred: devices / (tp x pp x cp)")
    return Degrees(tensor, pipeline, context, data)


def _sequence(settings: Settings, degrees: Degrees, found: Findings) -> int:
    name = settings.first("seq_length", "encoder_seq_length")
    if not name:
        return 0
    seq = settings.whole(name)
    found.put("training.seq_len", seq, settings.place(name))
    longest = "max_position_embeddings"
    if settings.flags and longest in settings and settings.whole(longest) < seq:
        raise settings.wrong(
            longest, f"{settings.whole(longest)} is below the sequence length {seq} "
            f"({settings.place(name)}); it must be at least that",
        )  # fmt: skip
    _whole_shares(settings, name, seq, degrees)
    return seq


def _whole_shares(settings: Settings, name: str, seq: int, degrees: Degrees) -> None:
    """Two chunks for every context-parallel rank, and whole tokens for tensor-parallel ones."""
    parts, why = 1, []
    if degrees.context > 1:
        parts, why = 2 * degrees.context, [f"2 x cp {degrees.context}"]
    if settings.on("sequence_parallel") and degrees.tensor > 1:
        parts, why = parts * degrees.tensor, [*why, f"tp {degrees.tensor} (sequence parallelism)"]
    if seq % parts:
        below, above = seq // parts * parts, -(-seq // parts) * parts
        near = f"{below} and {above}" if below else str(above)
        raise settings.wrong(
            name, f"{seq} tokens are not divisible by {' x '.join(why)} = {parts}; nearest legal "
            f"lengths: {near}",
        )  # fmt: skip


def _precision(settings: Settings, found: Findings) -> None:
    bf16, fp16 = settings.on("bf16"), settings.on("fp16")
    if bf16 and fp16:
        both = f"--bf16 ({settings.place('bf16')}) and --fp16 ({settings.place('fp16')})"
        raise InputError(settings.label, f"{both} exclude each other; keep one of them")
    eight = settings.first("fp8_format", "fp8")
    four = settings.first("fp4_format", "fp4")
    if eight and four:
        both = f"{settings.place(eight)} and {settings.place(four)}"
        raise InputError(
            settings.label, f"fp8 and fp4 ({both}) exclude each other; keep one of them"
        )
    key = "training.precision"
    if four:
        recipe = settings.text("fp4_recipe") if "fp4_recipe" in settings else "nvfp4"
        found.put(key, recipe if recipe == "nvfp4" else f"fp4-{recipe:.40}", settings.place(four))
    elif eight:
        recipe = fp8_recipe(settings)
        found.put(key, _RECIPES.get(recipe, f"fp8-{recipe:.40}"),
                  settings.place(eight) + (f", recipe {recipe}"))  # fmt: skip
        if settings.on("first_last_layers_bf16"):
            _ends_in_half(settings.place("first_last_layers_bf16"), found)
    elif "mixed_precision" in settings:
        said = settings.text("mixed_precision").rstrip("()").rsplit(".", 1)[-1].replace("-", "_")
        if said not in _MIXED:
            known = ", ".join(_MIXED)
            raise settings.wrong("mixed_precision", f"{said!r:.60} is none of {known}")
        found.put(key, _MIXED[said], settings.place("mixed_precision"))
        if _MIXED[said] == CURRENT:
            _ends_in_half(settings.place("mixed_precision"), found)
    elif bf16 or fp16:
        found.put(key, "bf16" if bf16 else "fp16", settings.place("bf16" if bf16 else "fp16"))
    elif settings.flags:
        found.put(key, "fp32", f"{FORMAT_DEFAULT}: neither --bf16 nor --fp16")
        found.note("neither --bf16 nor --fp16 is given: Megatron computes in fp32, which is slow")


def _ends_in_half(place: str, found: Findings) -> None:
    found.note(f"{place} keeps the first and the last layer in bf16; they are estimated in fp8")


def _batch(settings: Settings, degrees: Degrees, seq: int, found: Findings) -> Batch:
    micro_name, total_name = "micro_batch_size", "global_batch_size"
    micro = settings.whole(micro_name) if micro_name in settings else 0
    if micro:
        found.put("strategy.micro_batch_size", micro, settings.place(micro_name))
    total, place = _total(settings, seq, found)
    each = micro * degrees.data
    if not total and each:
        total, place = each, f"{FORMAT_DEFAULT}: one micro-batch per data-parallel rank"
    if not total:
        return Batch(micro, 0, 0, "")
    found.put("training.global_batch_size", total, place)
    if not each:
        return Batch(micro, total, 0, place)
    if total % each:
        legal = (
            f"{total // each * each} and {-(-total // each) * each}" if total > each else str(each)
        )
        raise settings.wrong(
            total_name, f"global batch {total} is not divisible by micro-batch {micro} x dp "
            f"{degrees.data}; nearest legal: {legal}",
        )  # fmt: skip
    _evaluation(settings, total, micro, degrees)
    found.put(
        "strategy.micro_batch_num", total // each, "inferred: global batch / (micro-batch x dp)"
    )
    return Batch(micro, total, total // each, place)


def _total(settings: Settings, seq: int, found: Findings) -> tuple[int, str]:
    name, steps = "global_batch_size", "step_batch_size_schedule"
    if steps in settings:
        if name in settings:
            raise InputError(
                settings.label, f"the batch is given by {settings.place(name)} and by "
                f"{settings.place(steps)}; Megatron takes one of them",
            )  # fmt: skip
        return _scheduled(settings, steps, seq, found)
    if "rampup_batch_size" in settings:
        found.note(f"{settings.place('rampup_batch_size')}: the batch after the ramp is estimated")
    return (settings.whole(name), settings.place(name)) if name in settings else (0, "")


def _scheduled(settings: Settings, name: str, seq: int, found: Findings) -> tuple[int, str]:
    """The last batch that the run reaches: ``0:384 200B:768`` counts tokens, samples end it."""
    units = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
    steps = []
    for word in " ".join(settings.found[name].values).strip("\"'").split():
        start, colon, size = word.partition(":")
        unit = start[-1:].upper() if start[-1:].isalpha() else ""
        number = start[: len(start) - len(unit)]
        if not colon or unit not in units or not number.isdigit() or not size.isdigit():
            raise settings.wrong(name, f"expected steps as 200B:768, got {word!r:.40}")
        steps.append((int(number) * units[unit], int(size)))
    if not steps:
        raise settings.wrong(name, "has no step; expected for instance 0:384 200B:768")
    tokens = settings.whole("train_samples") * seq if "train_samples" in settings and seq else None
    reached = [size for start, size in steps if tokens is None or start < tokens] or [steps[0][1]]
    sizes = ", ".join(str(size) for _, size in steps)
    found.note(
        f"the batch grows ({sizes}); the last that the run reaches, {reached[-1]}, is estimated"
    )
    return reached[-1], settings.place(name)


def _evaluation(settings: Settings, total: int, micro: int, degrees: Degrees) -> None:
    name = settings.first("eval_global_batch_size", "eval_micro_batch_size")
    if not name:
        return
    size = settings.whole_or("eval_global_batch_size", total)
    each = settings.whole_or("eval_micro_batch_size", micro) * degrees.data
    if size % each:
        raise settings.wrong(
            name, f"evaluation batch {size} is not divisible by {each} (micro-batch x dp): validation "
            f"would fail; nearest legal: {max(each, size // each * each)}",
        )  # fmt: skip


def _framework(settings: Settings, shape: Shape | None, degrees: Degrees, found: Findings) -> None:
    found.put("framework.name", settings.family, "inferred: the format of the file")
    at = "framework.override"
    name = settings.first("use_tp_pp_dp_mapping")
    if name and settings.on(name):
        found.put(f"{at}.rank_order", "tp-cp-pp-dp", settings.place(name))
    name = "make_vocab_size_divisible_by"
    multiple = 1 if "padded_vocab_size" in settings else settings.whole_or(name, 128)
    if multiple != 128:
        found.put(
            f"{at}.tp.vocabulary_multiple", multiple, settings.place(name, "padded_vocab_size")
        )
    if shape is not None and shape.vocab:
        rows = -(-shape.vocab // (multiple * degrees.tensor)) * multiple * degrees.tensor
        if rows != shape.vocab:
            found.note(
                f"Megatron pads the vocabulary from {shape.vocab} to {rows} rows: a multiple of "
                f"{multiple} x tp {degrees.tensor}"
            )
    _reductions(settings, degrees, found)


def _reductions(settings: Settings, degrees: Degrees, found: Findings) -> None:
    """What differs from the profile in how gradients and parameters travel."""
    at = "framework.override"
    if settings.on("grad_reduce_in_bf16"):
        place = settings.place("grad_reduce_in_bf16")
        found.put(f"{at}.core.states.gradients", 2, place)
        found.put(f"{at}.dp.gradient_reduce_bytes", 2.0, place)
    if settings.on("grad_reduce_in_fp32"):
        found.put(f"{at}.dp.gradient_reduce_bytes", 4.0, settings.place("grad_reduce_in_fp32"))
    if degrees.data * degrees.context == 1:
        return
    sharded = any(settings.on(n) for n in ("use_distributed_optimizer", "use_megatron_fsdp"))
    for field, name, matters in (("overlap_gradients", "overlap_grad_reduce", True),
                                 ("overlap_parameters", "overlap_param_gather", sharded)):  # fmt: skip
        if matters and not settings.on(name):
            place = settings.place(name) or f"{FORMAT_DEFAULT}: no {name.replace('_', '-')}"
            found.put(f"{at}.dp.{field}", False, place)


def _sharding(settings: Settings, degrees: Degrees, found: Findings) -> None:
    stage, place = 0, FORMAT_DEFAULT
    if settings.on("use_megatron_fsdp") or settings.on("use_custom_fsdp"):
        name = "data_parallel_sharding_strategy"
        text = settings.text(name) if name in settings else (
            "optim_grads_params" if settings.flags else "no_shard"
        )  # fmt: skip
        if text not in _SHARDING:
            raise settings.wrong(name, f"{text!r:.40} is none of {', '.join(_SHARDING)}")
        stage = _SHARDING[text]
        place = settings.place(name, "use_megatron_fsdp", "use_custom_fsdp")
    elif settings.on("use_torch_fsdp2"):
        _torch_fsdp(settings, degrees)
        kept = settings.on("torch_fsdp2_no_reshard_after_forward")
        stage, place = (2 if kept else 3), settings.place("use_torch_fsdp2")
    elif settings.on("use_distributed_optimizer"):
        stage, place = 1, settings.place("use_distributed_optimizer")
    replicas = settings.whole_or("num_distributed_optimizer_instances", 1)
    if degrees.data * degrees.context == 1 and stage:
        found.note(f"{place}: one rank holds all states, nothing is sharded")
        stage = 0
    found.put("strategy.zero_stage", stage, place)
    if not degrees.data:
        return
    name = "num_distributed_optimizer_instances"
    if degrees.data % replicas:
        raise settings.wrong(name, f"{replicas} does not divide dp {degrees.data}")
    shard = degrees.data // replicas if stage else 1
    found.put("strategy.shard_degree", shard, settings.place(name) or "inferred: all of dp")


def _torch_fsdp(settings: Settings, degrees: Degrees) -> None:
    name = "use_torch_fsdp2"
    tied = not settings.on("untie_embeddings_and_output_weights")
    reasons = (
        (degrees.pipeline > 1, "pipeline parallelism; use pp 1"),
        (settings.on("use_distributed_optimizer"), "the distributed optimizer; delete that flag"),
        (settings.flags and tied, "tied embeddings; add --untie-embeddings-and-output-weights"),
        (settings.on("fp16"), "fp16; use --bf16"),
    )
    for broken, what in reasons:
        if broken:
            raise settings.wrong(name, f"Megatron has torch FSDP2 not together with {what}")


def _exchange(settings: Settings, degrees: Degrees, found: Findings) -> None:
    key = "strategy.sequence_parallel"
    on = settings.on("sequence_parallel")
    if on and degrees.tensor == 1:
        found.put(key, False, f"inferred: off at tp 1 ({settings.place('sequence_parallel')})")
    else:
        found.put(key, on, settings.place("sequence_parallel") or FORMAT_DEFAULT)
    if degrees.context == 1:
        return
    name = settings.first("context_parallel_algo", "cp_comm_type")
    if not name:
        found.put("strategy.cp_comm_type", "p2p", FORMAT_DEFAULT)
        return
    values = {v for each in settings.found[name].values for v in each.strip("[]'\"").split(",")}
    known = _ALGORITHMS if name == "context_parallel_algo" else _EXCHANGES
    if len(values) != 1 or not values <= known.keys():
        raise settings.wrong(
            name, f"{' '.join(sorted(values))!r:.60} is not one exchange for all layers; autopar "
            f"knows {', '.join(known)}",
        )  # fmt: skip
    found.put("strategy.cp_comm_type", known[values.pop()], settings.place(name))
