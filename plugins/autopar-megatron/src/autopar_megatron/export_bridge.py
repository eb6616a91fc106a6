"""Recipes for Megatron-Bridge: a Python file that builds the whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import CannotExpress, ExportRequest, counted
from autopar_megatron.model_words import Words, words_of
from autopar_megatron.partition import layout_text
from autopar_megatron.plan import CURRENT, DELAYED, SELECTIVE_MODULES, Plan, plan_of


_MIXED = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed",
    CURRENT: "bf16_with_fp8_current_scaling_mixed", DELAYED: "bf16_with_fp8_delayed_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip


class Code(str):
    """A value that is an expression, not a literal."""

    __slots__ = ()


def export_bridge(request: ExportRequest) -> Mapping[str, str]:
    """``autopar_recipe.py``.

    Raises:
        CannotExpress: When Megatron-Bridge has no way to say the strategy.
    """
    plan = plan_of(request, "Megatron-Bridge")
    if plan.precision not in _MIXED:
        raise CannotExpress(
            "training.precision", f"Megatron-Bridge mixes precisions with bf16 or fp16, not "
            f"{plan.precision}", {"precision": "bf16"},
        )  # fmt: skip
    if plan.sharding and plan.pipeline_inside and plan.pipeline > 1:
        raise CannotExpress(
            "framework.rank_order", "Megatron-Bridge has no other rank order with FSDP",
            {"rank_order": "tp-cp-dp-pp"},
        )  # fmt: skip
    words = words_of(request)
    if words.position == "learned_absolute" and words.positions != plan.sequence:
        raise CannotExpress(
            "model.position_rows", f"Megatron-Bridge makes as many learned positions as a sequence has "
            f"tokens, {plan.sequence}, not {words.positions}", {},
        )  # fmt: skip
    return {"autopar_recipe.py": _recipe(request, plan, words)}


def model_fields(request: ExportRequest, plan: Plan, words: Words) -> dict[str, Any]:
    """Arguments of ``GPTModelProvider``."""
    model = request.model
    fields: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads,
        "kv_channels": model.head_dim,
        "seq_length": plan.sequence,
        "vocab_size": model.vocab,
        "should_pad_vocab": True,
        "make_vocab_size_divisible_by": plan.vocabulary_multiple,
        "position_embedding_type": words.position,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": model.gated_mlp,
        "activation_func": Code("F.silu" if model.gated_mlp else "F.gelu"),
        "add_bias_linear": words.bias,
        "add_qkv_bias": words.qkv_bias,
        "qk_layernorm": model.qk_norm == "head",
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "native",
    }
    if words.position == "rope":
        fields["rotary_base"] = Code("ROTARY_BASE")
    return {**fields, **parallel_fields(plan)}


def parallel_fields(plan: Plan) -> dict[str, Any]:
    """Degrees, virtual stages, partition and recompute."""
    fields: dict[str, Any] = {
        "tensor_model_parallel_size": plan.tensor,
        "pipeline_model_parallel_size": plan.pipeline,
        "context_parallel_size": plan.context,
        "sequence_parallel": plan.sequence_parallel,
    }
    if plan.pipeline > 1:
        half = {"fp16": "torch.float16"}.get(plan.precision, "torch.bfloat16")
        fields["pipeline_dtype"] = Code(half)
        if not plan.even:
            fields["pipeline_model_parallel_layout"] = layout_text(plan.stages)
        if plan.even and plan.chunks > 1:
            fields["virtual_pipeline_model_parallel_size"] = plan.chunks
        if plan.group:
            fields["microbatch_group_size_per_vp_stage"] = plan.group
    if plan.exchange:
        fields["cp_comm_type"] = plan.exchange
    recompute = plan.recompute
    if recompute.granularity:
        fields["recompute_granularity"] = recompute.granularity
    if recompute.granularity == "selective":
        fields["recompute_modules"] = list(SELECTIVE_MODULES)
    if recompute.method:
        fields["recompute_method"] = recompute.method
        fields["recompute_num_layers"] = recompute.layers
    if plan.sharding:
        fields["gradient_accumulation_fusion"] = False
    return fields


def ddp_fields(plan: Plan) -> dict[str, Any]:
    """Arguments of ``DistributedDataParallelConfig``."""
    fields: dict[str, Any] = {
        "use_distributed_optimizer": plan.distributed_optimizer,
        "overlap_grad_reduce": plan.overlap_gradients,
        "overlap_param_gather": plan.overlap_parameters,
        "grad_reduce_in_fp32": plan.gradient_bits == 32,
    }
    if plan.sharding:
        fields |= {
            "use_megatron_fsdp": True, "data_parallel_sharding_strategy": plan.sharding,
        }  # fmt: skip
    if plan.instances > 1:
        fields["num_distributed_optimizer_instances"] = plan.instances
    return fields


def _recipe(request: ExportRequest, plan: Plan, words: Words) -> str:
    checkpoint = 'ckpt_format="fsdp_dtensor"' if plan.sharding else 'ckpt_format="torch_dist"'
    mapping = plan.pipeline_inside
    base = (
        "ROTARY_BASE = 10000  # check that it is your model's\n" if words.position == "rope" else ""
    )
    return (
        f"{request.comment()}#\n"
        f"# For Megatron-Bridge: torchrun on {counted(plan.devices, 'device')}, for instance\n"
        f"#   torchrun --nproc_per_node 8 --nnodes {max(1, plan.devices // 8)} ... autopar_recipe.py\n"
        "# with DATA_PATH, TOKENIZER_MODEL, TRAIN_ITERS and LR in the environment. The strategy does\n"
        "# not depend on the activation function, the rotary base, data and learning rate; check that\n"
        "# they are those of your model.\n"
        '"""A training configuration of Megatron-Bridge."""\n\n'
        "import os\n\n"
        f"{_environment(plan)}"
        "import torch\n"
        "import torch.nn.functional as F\n\n"
        "from megatron.bridge.models.gpt_provider import GPTModelProvider\n"
        "from megatron.bridge.recipes.utils.optimizer_utils import (\n"
        "    distributed_fused_adam_with_cosine_annealing,\n"
        ")\n"
        "from megatron.bridge.training.config import (\n"
        "    CheckpointConfig,\n    ConfigContainer,\n    DistributedDataParallelConfig,\n"
        "    DistributedInitConfig,\n    GPTDatasetConfig,\n    LoggerConfig,\n    RNGConfig,\n"
        "    TokenizerConfig,\n    TrainingConfig,\n)\n\n"
        f"DEVICES = {plan.devices}\n{base}\n\n"
        "def autopar_config() -> ConfigContainer:\n"
        '    """The strategy above with its model."""\n'
        "    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(\n"
        '        max_lr=float(os.environ["LR"])\n'
        "    )\n"
        "    return ConfigContainer(\n"
        f"{_call('model', 'GPTModelProvider', model_fields(request, plan, words))}"
        f"{_call('train', 'TrainingConfig', _train_fields(plan))}"
        "        optimizer=optimizer,\n"
        "        scheduler=scheduler,\n"
        f"{_call('ddp', 'DistributedDataParallelConfig', ddp_fields(plan))}"
        f"{_call('dataset', 'GPTDatasetConfig', _dataset_fields(plan))}"
        "        logger=LoggerConfig(),\n"
        f"{_call('tokenizer', 'TokenizerConfig', _tokenizer_fields())}"
        f"        checkpoint=CheckpointConfig({checkpoint}),\n"
        "        rng=RNGConfig(),\n"
        f"        dist=DistributedInitConfig(use_tp_pp_dp_mapping={mapping}),\n"
        f'        mixed_precision="{_MIXED[plan.precision]}",\n'
        "    )\n\n\n"
        'if __name__ == "__main__":\n'
        "    from megatron.bridge.training.gpt_step import forward_step\n"
        "    from megatron.bridge.training.pretrain import pretrain\n\n"
        '    if int(os.environ["WORLD_SIZE"]) != DEVICES:\n'
        '        raise SystemExit(f"this strategy is for {DEVICES} devices")\n'
        "    pretrain(config=autopar_config(), forward_step_func=forward_step)\n"
    )


def _environment(plan: Plan) -> str:
    if plan.one_connection:
        return 'os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # before CUDA starts\n\n'
    if plan.sharding:
        return 'os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # FSDP refuses the value 1\n\n'
    return ""


def _train_fields(plan: Plan) -> dict[str, Any]:
    return {
        "micro_batch_size": plan.micro_batch, "global_batch_size": plan.global_batch,
        "train_iters": Code('int(os.environ["TRAIN_ITERS"])'),
    }  # fmt: skip


def _dataset_fields(plan: Plan) -> dict[str, Any]:
    return {
        "seq_length": plan.sequence, "random_seed": 1234,
        "data_path": Code('os.environ["DATA_PATH"]'), "split": "969,30,1",
        "dataloader_type": "single", "reset_position_ids": False, "reset_attention_mask": False,
        "eod_mask_loss": False,
    }  # fmt: skip


def _tokenizer_fields() -> dict[str, Any]:
    return {
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": Code('os.environ["TOKENIZER_MODEL"]'),
    }


def _call(name: str, cls: str, fields: Mapping[str, Any]) -> str:
    lines = [
        f"            {key}={value if isinstance(value, Code) else _literal(value)},\n"
        for key, value in fields.items()
    ]
    return f"        {name}={cls}(\n{''.join(lines)}        ),\n"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(_literal(each) for each in value) + "]"
    return repr(value)
