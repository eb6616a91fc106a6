"""What TorchTitan refuses besides the rules that the dimensions own, with a legal alternative each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar_core.api import HABIT, Broken, EvalContext, Ints, Level, StrategyBatch
from autopar_torchtitan.config import TorchTitanConfig
from autopar_torchtitan.flavors import FLAVORS, PYTHON_ERA, TOML_ERA, flavor_of
from autopar_torchtitan.plan import PRECISIONS
from autopar_torchtitan.stages import V_SHAPED, turned


Context = EvalContext[TorchTitanConfig, None]
TITAN = "torchtitan"
# torchtitan 0.3.0 components/quantization/nvfp4.py: widths must be multiples of 128.
NVFP4_MULTIPLE = 128


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level; none for other frameworks."""
    if not ctx.framework.is_a(TITAN):
        return []
    if level is Level.DEGREE:
        return [*_precision(batch, ctx), *_pipeline(batch, ctx), _sequence(batch, ctx),
                _longest(batch, ctx), _flavor(batch, ctx), *_four_bits(batch, ctx)]  # fmt: skip
    if level is Level.SHARDING:
        return [_ddp(batch, ctx), _unsharded(batch)]
    if level is Level.RECOMPUTE:
        return [_empty(batch, ctx)]
    return []


def _precision(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    """What no release has is refused; what another one has is a warning, as the profile counts it."""
    version, precision = ctx.config.version, ctx.training.precision
    having = [release for release, known in PRECISIONS.items() if precision in known]
    numbers = {"version": version, "known": ", ".join(PRECISIONS[version]), "precision": precision,
               "other": " and ".join(having)}  # fmt: skip
    source = "torchtitan job_config.py, config/configs.py: mixed_precision_param; components/quantization"
    return [
        Broken(
            code="torchtitan-precision",
            rows=np.full(len(batch), not having),
            sentence="TorchTitan {version} trains in {known}, not in {precision}; use bf16",
            numbers=numbers, source=source,
        ),
        Broken(
            code="torchtitan-precision-release",
            rows=np.full(len(batch), bool(having) and version not in having),
            sentence="TorchTitan {version} trains in {known}; {precision} needs release {other}",
            numbers=numbers, source=source, kind=HABIT,
        ),
    ]  # fmt: skip


def _pipeline(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    several = batch["pp_degree"] > 1
    old_qwen = ctx.config.version == TOML_ERA and ctx.model.qk_norm == "head"
    return [
        Broken(
            code="torchtitan-tied",
            rows=several & ctx.model.tied_embeddings,
            sentence="TorchTitan cannot split tied embeddings over pp {pp_degree}; use pp 1",
            source="torchtitan models/common/decoder.py: enable_weight_tying with "
            "pipeline_parallel_degree",
        ),
        Broken(
            code="torchtitan-qwen-pipeline",
            rows=several & old_qwen & (not ctx.model.tied_embeddings),
            sentence="TorchTitan 0.2.2 has no pipeline for qwen3, so no pp {pp_degree}; use pp 1, or "
            "release 0.3.0",
            source="torchtitan 0.2.2 models/qwen3/__init__.py: pipelining_fn=None; train.py",
        ),
    ]


def _sequence(batch: StrategyBatch, ctx: Context) -> Broken:
    """Together; that each degree alone divides is a rule of its own dimension."""
    tensor, context, seq = batch["tp_degree"], batch["cp_degree"], ctx.training.seq_len
    parts = tensor * 2 * context
    alone = (seq % tensor == 0) & (seq % (2 * context) == 0)
    return Broken(
        code="torchtitan-sequence",
        rows=(context > 1) & (tensor > 1) & alone & (seq % parts != 0),
        sentence="{seq} tokens do not divide by tp {tp_degree} x 2 x cp {cp_degree} = {parts}; "
        "the nearest shorter sequence has {near}",
        numbers={"seq": seq, "parts": parts, "near": _multiple(seq, parts)},
        source="torchtitan 0.2.2 models/llama3/infra/parallelize.py: seq_len_divisor; 0.3.0 trainer.py",
    )


def _multiple(value: int, of: Ints) -> Ints:
    return np.asarray(np.maximum(of, value // of * of))


def _longest(batch: StrategyBatch, ctx: Context) -> Broken:
    flavor = flavor_of(ctx.model, PYTHON_ERA)
    longest = flavor.longest if flavor and ctx.config.version == PYTHON_ERA else 0
    return Broken(
        code="torchtitan-rope",
        rows=np.full(len(batch), bool(longest) and ctx.training.seq_len > longest),
        sentence="{seq} tokens are more than the {longest} of the model's RoPE table; train with at most "
        "{longest}",
        numbers={"seq": ctx.training.seq_len, "longest": longest},
        source="torchtitan 0.3.0 models/common/decoder.py: training.seq_len <= max_seq_len",
    )


def _flavor(batch: StrategyBatch, ctx: Context) -> Broken:
    version = ctx.config.version
    names = ", ".join(f"{one.family} {one.name}" for one in FLAVORS if version in one.releases)
    return Broken(
        code="torchtitan-flavor",
        rows=np.full(len(batch), flavor_of(ctx.model, version) is None),
        sentence="TorchTitan {version} has no flavour of this shape and cannot be given one in a "
        "configuration; it has {names}",
        numbers={"version": version, "names": names},
        kind=HABIT,
        source="torchtitan models/llama3/__init__.py, models/qwen3/__init__.py",
    )


def _four_bits(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    if ctx.training.precision != "nvfp4":
        return []
    model = ctx.model
    widths: Sequence[int] = (model.hidden, model.ffn_hidden, model.query_width, model.kv_width)
    odd = next((width for width in widths if width % NVFP4_MULTIPLE), 0)
    return [
        Broken(
            code="torchtitan-nvfp4-width",
            rows=np.full(len(batch), bool(odd)),
            sentence="NVFP4 needs widths that are multiples of {multiple}, and {odd} is none; use "
            "mxfp8 or bf16",
            numbers={"multiple": NVFP4_MULTIPLE, "odd": odd},
            source="torchtitan 0.3.0 components/quantization/nvfp4.py: NVFP4Linear.Config",
        )
    ]


def _ddp(batch: StrategyBatch, ctx: Context) -> Broken:
    """Rows of stage 0 exist only where a person's profile allows them."""
    replicas, others = batch["dp_degree"], batch["tp_degree"] * batch["pp_degree"]
    unsharded = (batch["zero_stage"] == 0) & (replicas > 1) & (batch["cp_degree"] == 1)
    return Broken(
        code="torchtitan-ddp",
        rows=unsharded & (others > 1) & (ctx.config.version == TOML_ERA),
        sentence="TorchTitan 0.2.2 combines DDP with no other dimension, here tp {tp_degree} and pp "
        "{pp_degree}; use zero_stage 3",
        source="torchtitan 0.2.2 models/llama3/infra/parallelize.py: DDP has not supported > 1D "
        "parallelism",
    )


def _unsharded(batch: StrategyBatch) -> Broken:
    return Broken(
        code="torchtitan-cp-sharding",
        rows=(batch["zero_stage"] == 0) & (batch["cp_degree"] > 1),
        sentence="TorchTitan shards parameters over cp {cp_degree}; use zero_stage 3",
        source="torchtitan distributed/parallel_dims.py: fsdp = dp_shard x cp",
    )


def _empty(batch: StrategyBatch, ctx: Context) -> Broken:
    """Given partitions with a stage between the ends that has no layer."""
    rows = np.zeros(len(batch), dtype=bool)
    field = batch.fields["schedule"]
    known = [field.encode(name) for name in V_SHAPED if name in field.choices]
    shaped = np.isin(batch["schedule"], known)
    for index, plan in enumerate(ctx.space.partitions):
        if plan.kind == "given" and plan.given is not None:
            counts = [
                n for part in plan.given for n in (part if isinstance(part, Sequence) else [part])
            ]
            here = batch["partition_plan"] == index
            rows |= here & ~shaped & (not all(counts[1:-1]))
            rows |= here & shaped & (not all(turned(counts, V_SHAPED[0])[1:-1]))
    return Broken(
        code="torchtitan-empty-stage",
        rows=rows & (batch["pp_degree"] > 1),
        sentence="a stage between the first and the last has no layer, so no module; give each "
        "one layer or more",
        source="torchtitan 0.3.0 components/optimizer/optimizer.py: a pattern that matches no parameters",
    )
