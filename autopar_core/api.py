"""Everything that a plugin may import. The only module with a compatibility promise."""

from __future__ import annotations

from autopar_core.config.documents import Document, read_json, read_toml_text, read_yaml
from autopar_core.config.huggingface import hugging_face_model
from autopar_core.domain.arrays import Array, Bools, Floats, Ints, ceil_div
from autopar_core.domain.cost import (
    MemoryCost,
    MemoryPart,
    PerformanceCost,
    StageMemory,
    StageSummary,
    TimePart,
)
from autopar_core.domain.export import ExportEstimate, ExportRequest
from autopar_core.domain.fields import Dimension, Field, Level
from autopar_core.domain.findings import FORMAT_DEFAULT, Findings
from autopar_core.domain.framework import FrameworkProfile, LayerHost, TransientTensor
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.result import Detail, SearchResult
from autopar_core.domain.strategy import Strategy, StrategyBatch
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import (
    ALWAYS,
    ATTENTION,
    BLOCK_END,
    BLOCK_INSTANTS,
    BLOCK_PARTS,
    BLOCK_REDUCE,
    EMBEDDING_BACKWARD,
    EMBEDDING_REDUCE,
    FINAL,
    FORWARD_END,
    GATHER,
    HEAD_BACKWARD,
    HEAD_REDUCE,
    LOSS,
    MLP,
    RECOMPUTE,
    AttentionCall,
    AttentionCalls,
    Divide,
    Extent,
    MemoryTerm,
    Partial,
    Rounding,
    Shard,
    TimeTerm,
    Window,
)
from autopar_core.domain.training import ClusterConfig, TrainingConfig
from autopar_core.domain.verdict import HABIT, HARD, Broken
from autopar_core.errors import AutoparError, CannotExpress, InputError
from autopar_core.hooks.context import EvalContext
from autopar_core.hooks.info import PluginInfo
from autopar_core.hooks.markers import API_VERSION, hookimpl
from autopar_core.hooks.named import Exporter, Generator, Ranker, Reader, Renderer
from autopar_core.hooks.schedule import (
    OPERATIONS,
    Composer,
    Floor,
    Moments,
    ScheduleKey,
    Timeline,
)
from autopar_core.laws.collectives import (
    RING,
    SEND,
    Group,
    all_reduce_seconds,
    all_to_all_seconds,
    bucket_seconds,
    fixed_seconds,
    ring_inputs,
    ring_seconds,
    send_inputs,
    send_seconds,
)
from autopar_core.laws.compute import (
    attention_seconds,
    gemm_seconds,
    moved_inputs,
    moved_seconds,
)
from autopar_core.units import counted
from autopar_core.work.profile_terms import host_terms, profile_terms
from autopar_core.work.rank_work import RankWork


__all__ = [
    "ALWAYS", "API_VERSION", "ATTENTION", "BLOCK_END", "BLOCK_INSTANTS", "BLOCK_PARTS",
    "BLOCK_REDUCE", "EMBEDDING_BACKWARD", "EMBEDDING_REDUCE", "FINAL", "FORMAT_DEFAULT",
    "FORWARD_END", "GATHER", "HABIT", "HARD", "HEAD_BACKWARD", "HEAD_REDUCE", "LOSS", "MLP",
    "OPERATIONS", "RECOMPUTE", "RING", "SEND",
    "Array", "AttentionCall", "AttentionCalls", "AutoparError", "Bools", "Broken", "CannotExpress",
    "ClusterConfig", "Composer", "Detail", "Dimension", "Divide", "Document", "EvalContext",
    "ExportEstimate", "ExportRequest", "Exporter", "Extent", "Field", "Findings", "Floats", "Floor",
    "FrameworkProfile", "Generator", "Group", "InputError", "Ints", "LayerHost", "Level",
    "MemoryCost", "MemoryPart", "MemoryTerm", "ModelConfig", "Moments", "Partial",
    "PerformanceCost", "PluginInfo", "PrecisionRecipe", "RankWork", "Ranker", "Reader", "Renderer",
    "Rounding", "ScheduleKey", "SearchResult", "Shard", "StageMemory", "StageSummary", "Strategy",
    "StrategyBatch", "SystemProfile", "TimePart", "TimeTerm", "Timeline", "TrainingConfig",
    "TransientTensor", "Window",
    "all_reduce_seconds", "all_to_all_seconds", "attention_seconds", "bucket_seconds", "ceil_div",
    "counted", "fixed_seconds", "gemm_seconds", "hookimpl", "host_terms", "hugging_face_model",
    "moved_inputs", "moved_seconds", "profile_terms", "read_json", "read_toml_text", "read_yaml",
    "ring_inputs", "ring_seconds", "send_inputs", "send_seconds",
]  # fmt: skip
