"""Reads the job and the strategy of graph mode: ``parallel_config``, ``parallel``, ``runner_config``."""

from __future__ import annotations

from collections.abc import Mapping

from autopar_core.api import FORMAT_DEFAULT, Document, Findings, InputError
from autopar_mindformers.read_model import is_older
from autopar_mindformers.read_stages import read_stages


LAYOUT, CONTEXT, MODEL = "parallel_config", "parallel", "model.model_config"
# Dimension -> key; all are 1 where the file is silent (tools/register/template.py).
DEGREES = {
    "dp": "data_parallel", "tp": "model_parallel", "pp": "pipeline_stage", "cp": "context_parallel",
}  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16",
              "float32": "fp32", "fp32": "fp32"}  # fmt: skip
_SEMI_AUTO = (1, "1", "semi_auto_parallel")
_ALGORITHMS = ("colossalai_cp", "ulysses_cp", "hybrid_cp")


def read(document: Document, found: Findings) -> None:
    """Put job and strategy into ``found``, which has the model already.

    Raises:
        InputError: When the file is wrong or contradicts itself.
    """
    older = is_older(document, MODEL)
    degrees = _degrees(document, found)
    _modes(document, degrees)
    _batch(document, found, degrees)
    _sequence(document, found)
    read_precision(document, found, MODEL, "float16" if older else "bfloat16")
    _tokens(document, found, degrees, older=older)
    if degrees["cp"] > 1:
        _exchange(document, found, degrees["cp"], older=older)
    _sharding(document, found, degrees)
    read_stages(document, found, degrees["pp"], older=older)


def whole_or(document: Document, key: str, default: int, *, least: int = 1) -> int:
    """A whole number, or the default where the key is absent or null."""
    return document.whole(key, least=least) if document.get(key) is not None else default


def flag_or(document: Document, key: str, default: bool) -> bool:
    """True or false, or the default where the key is absent or null."""
    return document.flag(key) if document.get(key) is not None else default


def place_or(document: Document, key: str, otherwise: str = FORMAT_DEFAULT) -> str:
    """Where a key stands, or that it does not."""
    return document.place(key) if document.get(key) is not None else otherwise


def _degrees(document: Document, found: Findings) -> dict[str, int]:
    degrees = {}
    for name, key in DEGREES.items():
        full = f"{LAYOUT}.{key}"
        degrees[name] = whole_or(document, full, 1)
        found.put(f"strategy.{name}_degree", degrees[name], place_or(document, full))
    world = degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"]
    found.put("cluster.devices", world, "inferred: product of the degrees")
    if world > 1 and document.get("use_parallel") is False:
        key = document.place("use_parallel")
        raise InputError(
            document.label, f"{key} is False, but the degrees of {document.place(LAYOUT)} multiply to "
            f"{world}; write use_parallel: True, or degrees of 1",
        )  # fmt: skip
    steps = "runner_config.gradient_accumulation_steps"
    if document.get("use_parallel") is False and whole_or(document, steps, 1) > 1:
        raise InputError(
            document.label, f"{document.place(steps)} is {document.get(steps)}, but "
            f"{document.place('use_parallel')} is False, where MindFormers resets it to 1; write "
            "use_parallel: True",
        )  # fmt: skip
    return degrees


def _modes(document: Document, degrees: Mapping[str, int]) -> None:
    """Modes of ``parallel`` in which ``parallel_config`` does not mean what it says."""
    key = f"{CONTEXT}.parallel_mode"
    mode = document.get(key, 1)
    if mode not in _SEMI_AUTO:
        raise document.wrong(
            key, f"in mode {mode!r:.40} MindFormers resets every degree of {LAYOUT} to 1 or chooses its "
            "own; write 1 (semi-automatic)",
        )  # fmt: skip
    if flag_or(document, f"{CONTEXT}.full_batch", True):
        return
    key = f"{CONTEXT}.dataset_strategy"
    rows = document.get(key)
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list) or not rows[0]:
        full = document.place(f"{CONTEXT}.full_batch")
        raise InputError(
            document.label, f"{full} is False, which needs {key}, a list of lists that begin with "
            f"{degrees['dp']}",
        )  # fmt: skip
    for row in rows:
        if not isinstance(row, list) or not row or row[0] != degrees["dp"]:
            data = place_or(document, f"{LAYOUT}.data_parallel")
            raise InputError(
                document.label, f"{document.place(key)} splits the batch by {row!r:.40}, but "
                f"data_parallel is {degrees['dp']} ({data}); every row must begin with it",
            )  # fmt: skip


def _batch(document: Document, found: Findings, degrees: Mapping[str, int]) -> None:
    """Sizes as ``trainer/base_trainer.py`` works them out."""
    key, times = "runner_config.batch_size", "micro_batch_interleave_num"
    copies = whole_or(document, times, 1)
    size = document.whole(key) * copies
    place = document.place(key)
    if copies > 1:
        place = f"{place} x {document.place(times)}"
        found.note(
            f"{document.place(times)}: {copies} parts of a micro-batch that hide each other's "
            "communication are estimated as one micro-batch, without the hiding"
        )
    found.put("strategy.micro_batch_size", size, place)
    stages, steps = f"{LAYOUT}.micro_batch_num", "runner_config.gradient_accumulation_steps"
    own, other = (stages, steps) if degrees["pp"] > 1 else (steps, stages)
    number = whole_or(document, own, 1)
    if whole_or(document, other, 1) > 1:
        why = "with" if degrees["pp"] > 1 else "without"
        found.note(
            f"{document.place(other)} has no effect {why} pipeline parallelism; {own} counts"
        )
    found.put("strategy.micro_batch_num", number, place_or(document, own))
    found.put(
        "training.global_batch_size", size * number * degrees["dp"],
        f"inferred: batch_size x data_parallel x {own.rpartition('.')[2]}"
        + (f" x {times}" if copies > 1 else ""),
    )  # fmt: skip


def _sequence(document: Document, found: Findings) -> None:
    key = f"{MODEL}.seq_length"
    data = "train_dataset.data_loader.config.seq_length"
    for each in (key, data):
        if document.get(each) is not None:
            found.put("training.seq_len", document.whole(each), document.place(each))


def read_precision(document: Document, found: Findings, section: str, default: str) -> None:
    """Put the number format of the matrix products, ``compute_dtype``.

    Raises:
        InputError: When it is none that autopar knows.
    """
    key = f"{section}.compute_dtype"
    if document.get(key) is None and not document.section(section):
        return
    text = document.get(key, default)
    if not isinstance(text, str) or text not in PRECISIONS:
        raise document.wrong(key, f"{text!r:.40} is none of {', '.join(sorted(PRECISIONS))}")
    found.put("training.precision", PRECISIONS[text], place_or(document, key))


def _tokens(
    document: Document, found: Findings, degrees: Mapping[str, int], *, older: bool
) -> None:
    key = f"{LAYOUT}.use_seq_parallel"
    parallel = flag_or(document, key, False)
    if degrees["tp"] > 1:
        found.put("strategy.sequence_parallel", parallel, place_or(document, key))
    elif parallel and not older:
        tensor = place_or(document, f"{LAYOUT}.model_parallel")
        raise InputError(
            document.label, f"{document.place(key)} is True, but model_parallel is 1 ({tensor}), which "
            "MindFormers refuses; write use_seq_parallel: False",
        )  # fmt: skip
    key = f"{LAYOUT}.vocab_emb_dp"
    whole = flag_or(document, key, True)
    if older and whole and degrees["tp"] > 1 and degrees["pp"] == 1:
        found.note(
            f"{place_or(document, key)}, vocab_emb_dp: the embedding is whole on every rank, but "
            "estimated as split by model_parallel; write vocab_emb_dp: False"
        )


def _exchange(document: Document, found: Findings, context: int, *, older: bool) -> None:
    flash = f"{MODEL}.use_flash_attention"
    if document.section(MODEL) and not flag_or(document, flash, not older):
        raise InputError(
            document.label, f"context_parallel is {context} "
            f"({place_or(document, f'{LAYOUT}.context_parallel')}), which needs flash attention, but "
            f"use_flash_attention is False ({place_or(document, flash)}); write True",
        )  # fmt: skip
    key, split = f"{LAYOUT}.context_parallel_algo", f"{LAYOUT}.ulysses_degree_in_cp"
    algorithm, inner = document.get(key, _ALGORITHMS[0]), whole_or(document, split, 1)
    place = place_or(document, key)
    if algorithm not in _ALGORITHMS:
        raise document.wrong(key, f"expected one of {', '.join(_ALGORITHMS)}")
    if algorithm == "hybrid_cp" and context % inner:
        raise InputError(
            document.label, f"{place_or(document, split)} is {inner}, which does not divide the "
            f"context_parallel of {context}",
        )  # fmt: skip
    if algorithm == "hybrid_cp" and inner not in (1, context):
        found.note(
            f"{place}: hybrid_cp, all-to-all among {inner} of {context} ranks, is no exchange that "
            "autopar estimates; its exchange is left open"
        )
        return
    if algorithm == "hybrid_cp":
        algorithm = "ulysses_cp" if inner == context else "colossalai_cp"
    elif not older and inner != (context if algorithm == "ulysses_cp" else 1):
        right = context if algorithm == "ulysses_cp" else 1
        raise InputError(
            document.label, f"{algorithm} ({place}) and ulysses_degree_in_cp {inner} "
            f"({place_or(document, split)}) disagree: the newer classes exchange heads among that many "
            f"ranks whatever the algorithm; write ulysses_degree_in_cp: {right}",
        )  # fmt: skip
    if algorithm == "ulysses_cp":
        found.put("strategy.cp_comm_type", "a2a", place)
        return
    ring = f"{MODEL}.use_ring_attention"
    if flag_or(document, ring, False):
        found.put("strategy.cp_comm_type", "p2p", document.place(ring))
    else:
        found.put("strategy.cp_comm_type", "all_gather", place)


def _sharding(document: Document, found: Findings, degrees: Mapping[str, int]) -> None:
    key, size_key = f"{CONTEXT}.enable_parallel_optimizer", f"{CONTEXT}.parallel_optimizer_config"
    ranks = degrees["dp"] * degrees["cp"]
    if ranks == 1:
        return
    on = flag_or(document, key, False)
    found.put("strategy.zero_stage", int(on), place_or(document, key))
    size_key = f"{size_key}.optimizer_weight_shard_size"
    if not on or degrees["dp"] == 1:
        return
    size = whole_or(document, size_key, -1, least=-1)
    if size == -1:
        found.put("strategy.shard_degree", degrees["dp"], place_or(document, size_key))
        return
    shard, rest = divmod(size, degrees["cp"])
    if size < 1 or rest or degrees["dp"] % shard:
        good = [degrees["cp"] * d for d in range(1, degrees["dp"] + 1) if degrees["dp"] % d == 0]
        raise document.wrong(
            size_key, f"{size} of the {ranks} ranks with the same weights; expected -1 (all) or one of "
            f"{', '.join(map(str, good))}",
        )  # fmt: skip
    found.put("strategy.shard_degree", shard, document.place(size_key))
    accumulate = f"{CONTEXT}.parallel_optimizer_config.gradient_accumulation_shard"
    if flag_or(document, accumulate, False):
        found.note(f"{document.place(accumulate)}: gradients in shards are estimated as whole ones")
