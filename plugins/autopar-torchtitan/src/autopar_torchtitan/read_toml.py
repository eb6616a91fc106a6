"""TOML configurations, releases up to 0.2.2: the keys of every release under one name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autopar_core.api import Document, InputError, read_toml_text
from autopar_torchtitan.settings import DEFAULTS, TOML, Setting, Settings


# Key of releases before 0.2 -> key since then.
OLD_KEYS: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.enable_loss_parallel": "",
    "training.compile": "compile.enable",
    "parallelism.enable_loss_parallel": "",
    **{
        f"experimental.{name}": f"parallelism.{name}"
        for name in (
            "enable_async_tensor_parallel", "pipeline_parallel_degree", "pipeline_parallel_schedule",
            "pipeline_parallel_schedule_csv", "pipeline_parallel_split_points",
            "pipeline_parallel_microbatches", "context_parallel_degree",
            "context_parallel_rotate_method",
        )
    },
}  # fmt: skip
_FLOAT8_FLAGS = ("float8.enable_float8_linear", "training.enable_float8_linear")
# Further keys of sections that autopar reads (job_config.py, releases 0.0.2 to 0.2.2).
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "model": (
        "norm_type", "hf_assets_path", "tokenizer_path", "print_after_conversion",
        "use_flex_attn", "attn_mask_type",
    ),
    "training": (
        "dataset", "dataset_path", "max_norm", "steps", "seed", "warmup_steps", "deterministic",
        "mixed_precision_reduce", "gc_freq", "gc_debug", "dataloader", "enable_fused_rmsnorm",
        "enable_compiled_autograd",
    ),
    "parallelism": (
        "enable_compiled_autograd", "context_parallel_load_balancer", "pipeline_parallel_microbatches",
        "pipeline_parallel_split_points", "pipeline_parallel_expert_parallel_overlap",
        "expert_tensor_parallel_degree", "expert_parallel_comm_backend", "expert_parallel_a2a_impl",
    ),
    "activation_checkpoint": (
        "per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget",
        "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug",
    ),
    "compile": ("backend",),
}  # fmt: skip
_SECTION = re.compile(
    r"^\s*\[(job|model|training|parallelism|experimental|activation_checkpoint|optimizer)\]",
    re.MULTILINE,
)
_SHOWS = re.compile(
    r"^\s*(?:\[(?:parallelism|activation_checkpoint|experimental|job)\]|flavor\s*=)", re.MULTILINE
)
_OURS = re.compile(r"^\s*\[(?:cluster|search|today|plugins)\b", re.MULTILINE)


def looks_like_toml(text: str) -> bool:
    """Whether a text has the sections of a job configuration, and is no input of autopar."""
    found = set(_SECTION.findall(text))
    return len(found) > 1 and bool(_SHOWS.search(text)) and not _OURS.search(text)


def read_toml(label: str, text: str) -> Settings:
    """The settings of a file.

    Raises:
        InputError: When it is no TOML, has a key that TorchTitan does not know, or says one thing
            under two names.
    """
    plain = read_toml_text(text, label)
    document = Document(label, plain.table, _lines(text))
    found: dict[str, Setting] = {}
    for key, value in _leaves(document):
        name = OLD_KEYS.get(key, key)
        if not name:
            continue
        setting = Setting(value, document.place(key))
        if name in found and found[name].value != value:
            one = found[name]
            raise InputError(
                label, f"{name} is {one.value} ({one.place}) and {value} ({setting.place}); only one of "
                "them can hold",
            )  # fmt: skip
        found[name] = setting
    _float8_flags(document, found)
    return Settings(label, TOML, found)


def _leaves(document: Document) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of the sections that matter."""
    for section in (*_OTHERS, "experimental"):
        table = document.section(section)
        for key, value in table.items():
            full = f"{section}.{key}"
            if full in DEFAULTS or full in OLD_KEYS:
                yield full, value
            elif section != "experimental":
                _known(document, section, key)
                if key.startswith(("pipeline_parallel", "use_flex")):
                    yield full, value
    for key in ("recipe_name", "enable_fsdp_float8_all_gather"):
        for kind in ("float8", "mx"):
            for full in (f"quantize.linear.{kind}.{key}", f"{kind}.{key}"):
                if full in document:
                    yield full, document.get(full)


def _known(document: Document, section: str, key: str) -> None:
    """Refuse a key that no release has: TorchTitan does, and a typing error would be lost here."""
    if key in _OTHERS[section] or f"{section}.{key}" in _FLOAT8_FLAGS:
        return
    names = [name.partition(".")[2] for name in DEFAULTS if name.startswith(f"{section}.")]
    near = difflib.get_close_matches(key, [*names, *_OTHERS[section]], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise document.wrong(f"{section}.{key}", f"TorchTitan has no such field in [{section}]{hint}")


def _float8_flags(document: Document, found: dict[str, Setting]) -> None:
    """Releases before 0.1 switched float8 on by a flag."""
    for key in _FLOAT8_FLAGS:
        if key in document and document.flag(key) and "model.converters" not in found:
            found["model.converters"] = Setting(["float8"], document.place(key))


def _lines(text: str) -> dict[str, int]:
    """Dotted key -> line, of keys that stand alone on their line."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"\s*\[([\w.]+)\]", line)
        if opened:
            section = f"{opened[1]}."
        elif assigned := re.match(r"\s*([\w.]+)\s*=", line):
            lines.setdefault(f"{section}{assigned[1]}", number)
    return lines
