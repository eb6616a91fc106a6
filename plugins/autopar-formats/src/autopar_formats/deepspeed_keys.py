"""Keys of a DeepSpeed configuration, as DeepSpeed 0.19.8 has them."""

from __future__ import annotations


# runtime/zero/config.py: an unknown key there is refused.
ZERO_KEYS = frozenset((
    "allgather_bucket_size", "allgather_partitions", "compute_grad_norm", "contiguous_gradients",
    "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "elastic_checkpoint",
    "enable_sanity_checks", "ignore_unused_parameters", "leaf_module", "legacy_stage1",
    "load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear",
    "offload_optimizer", "offload_param", "overlap_comm", "override_module_apply",
    "parameter_alignment", "pipeline_loading_checkpoint", "reduce_bucket_size", "reduce_scatter",
    "round_robin_gradients", "save_muon_momentum_buffer_in_memory", "stage",
    "stage3_allgather_sequential", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold", "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size", "stage3_use_all_reduce_for_fetch_params", "sub_group_size",
    "use_multi_rank_bucket_allreduce", "zenflow", "zero_hpz_partition_size",
    "zero_quantized_gradients", "zero_quantized_nontrainable_weights", "zero_quantized_weights",
))  # fmt: skip
REMOVED = frozenset(("mics_shard_size", "mics_hierarchical_params_gather"))
# runtime/constants.py and the configuration pages: an unknown key there is ignored without a word.
TOP_KEYS = frozenset((
    "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint",
    "comms_logger", "communication_data_type", "compile", "compression_training", "csv_monitor",
    "curriculum_learning", "data_efficiency", "data_parallel_size", "data_types", "dataloader_drop_last",
    "disable_allgather", "dump_state", "elasticity", "flops_profiler", "fp16", "fp32_allreduce",
    "gradient_accumulation_dtype", "gradient_accumulation_steps", "gradient_allreduce_op",
    "gradient_clipping", "gradient_predivide_factor", "graph_harvesting", "hybrid_engine",
    "load_universal", "memory_breakdown", "nebula", "optimizer", "pipeline", "prescale_gradients",
    "progressive_layer_drop", "scheduler", "seq_parallel_communication_data_type",
    "sequence_parallel_size", "sparse_attention", "sparse_gradients", "steps_per_print",
    "tensor_parallel", "tensorboard", "timers", "torch_autocast", "train_batch_size",
    "train_micro_batch_size_per_gpu", "use_data_before_expert_parallelism", "wall_clock_breakdown",
    "wandb", "zenflow", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "zero_optimization",
))  # fmt: skip
