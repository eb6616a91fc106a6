"""The core's own memory terms: states, saved activations, head, loss, transients, reserves.

Everything framework-specific (which tensors are saved, at which instants temporaries live) is data of
the framework profile; dimensions only divide the extents these sizes are made of.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from attrs import evolve

from autopar_core.compose.cast_memory import cast_weights
from autopar_core.domain.arrays import Ints
from autopar_core.domain.framework import CoreProfile, SavedTensor
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import (
    ALWAYS,
    BLOCK_INSTANTS,
    BLOCK_REDUCE,
    EMBEDDING_BACKWARD,
    EMBEDDING_REDUCE,
    HEAD_BACKWARD,
    HEAD_REDUCE,
    LOSS,
    Extent,
    MemoryTerm,
)
from autopar_core.work.profile_terms import formula_text, profile_terms, tensor_inputs
from autopar_core.work.rank_work import RankWork


OWNER = "core"
# unit -> (scale of a static term, stages that hold it)
_WHERE = {"block": ("layer", "any"), "embedding": ("one", "first"), "head": ("one", "last")}
_EMBEDDING = frozenset((EMBEDDING_BACKWARD, EMBEDDING_REDUCE))


def core_memory(
    work: RankWork, profile: CoreProfile, recipe: PrecisionRecipe, system: SystemProfile
) -> list[MemoryTerm]:
    """All memory terms of the core for N rows."""
    states = profile.states_of.get(recipe.format, profile.states)
    terms = _persistent(
        work, "parameters", Extent.PARAMETER_COPIES, states.parameters,
        block=recipe.parameter_bytes,
    )  # fmt: skip
    terms += _persistent(work, "optimizer states", Extent.OPTIMIZER_COPIES, states.optimizer)
    if states.step:
        terms += _persistent(work, "optimizer step", Extent.OPTIMIZER_COPIES, states.step, "step")
    if profile.gradients == "persistent":
        terms += _persistent(work, "gradients", Extent.GRADIENT_COPIES, states.gradients)
    else:
        terms += _gradients_on_reduce(work, states.gradients)
        terms += _gradients_deferred(work, states.gradients)
    for tensor in profile.saved:
        terms += _saved(work, tensor, recipe, profile)
    terms += cast_weights(work, system, recipe)
    terms += [_head_saved(work, tensor) for tensor in profile.head_saved]
    terms += _loss(work, profile)
    terms.append(_head_pending(work))
    terms += [evolve(t, owner=OWNER) for t in profile_terms(work, profile.transient)]
    return terms + _fixed(work, profile)


def _persistent(
    work: RankWork, name: str, copy: Extent, per_element: float, when: str = "always",
    block: float | None = None,
) -> list[MemoryTerm]:  # fmt: skip
    """Copies that live through the whole step: bytes per element x elements the rank holds.

    ``block`` is what the elements of a block have where they have another number of bytes.
    """
    terms = []
    for unit, (scale, on) in _WHERE.items():
        held = work.held(copy, unit)
        each = block if block is not None and unit == "block" else per_element
        terms.append(
            MemoryTerm(
                name=f"{name} ({unit})", bytes=np.rint(each * held).astype(np.int64),
                scale=scale, on=on, when=when, owner=OWNER,
                formula=f"{each:g} B x elements", inputs={"elements": held},
                source="framework profile: states",
            )
        )  # fmt: skip
    return terms


def _gradient(
    name: str, nbytes: Ints, live: frozenset[str], scale: str, on: str, when: str
) -> MemoryTerm:
    return MemoryTerm(
        name=name, bytes=nbytes, live=live, scale=scale, on=on, when=when, owner=OWNER,
        formula="bytes per gradient element x elements held after reduction",
        source="measured on H200, 87 torchtitan runs (allocation replay)",
    )  # fmt: skip


def _gradients_on_reduce(work: RankWork, per_element: float) -> list[MemoryTerm]:
    """One stage: sharded gradients appear group by group in the first backward and stay.

    Later micro-batches add in place, so the growth counts in the first backward only.
    """
    single = (~work.pipelined).astype(np.int64)
    block, embedding, head = (
        np.rint(per_element * work.held(Extent.GRADIENT_COPIES, unit)).astype(np.int64) * single
        for unit in ("block", "embedding", "head")
    )
    blocks = frozenset(BLOCK_INSTANTS)
    after_head = blocks | _EMBEDDING | {HEAD_REDUCE}
    return [
        _gradient("gradients (head)", head, after_head, "one", "last", "first"),
        _gradient("gradients (blocks done)", block, blocks, "layer_done", "any", "first"),
        _gradient("gradients (this block)", block, frozenset({BLOCK_REDUCE}), "one", "any", "first"),
        _gradient("gradients (blocks)", block, _EMBEDDING, "layer", "any", "first"),
        _gradient("gradients (embedding)", embedding, frozenset({EMBEDDING_REDUCE}), "one",
                  "first", "first"),
        _gradient("gradients (earlier, blocks)", block, ALWAYS, "layer", "any", "later"),
        _gradient("gradients (earlier, embedding)", embedding, ALWAYS, "one", "first", "later"),
        _gradient("gradients (earlier, head)", head, ALWAYS, "one", "last", "later"),
    ]  # fmt: skip


def _gradients_deferred(work: RankWork, per_element: float) -> list[MemoryTerm]:
    """Several stages: unsharded accumulators until a chunk's last backward, then sharded gradients."""
    several = work.pipelined.astype(np.int64)
    whole = {
        u: np.rint(per_element * work.parameters(u)).astype(np.int64) * several for u in _WHERE
    }
    held = {
        u: np.rint(per_element * work.held(Extent.GRADIENT_COPIES, u)).astype(np.int64) * several
        for u in _WHERE
    }
    blocks = frozenset(BLOCK_INSTANTS)
    hidden = work.tensor_bytes({"hidden": 2})
    table = np.rint(per_element * work.elements("whole_embedding")).astype(np.int64)
    terms = []
    for unit, (scale, on) in _WHERE.items():
        terms.append(_gradient(f"gradient accumulator ({unit})", whole[unit], ALWAYS, scale, on,
                               "accumulated"))  # fmt: skip
        terms.append(_gradient(f"gradients ({unit})", held[unit], ALWAYS, scale, on, "reduced"))
    at_embedding = frozenset({EMBEDDING_BACKWARD})
    return [
        *terms,
        _gradient("gradient accumulator (blocks done)", whole["block"], blocks, "layer_done", "any",
                  "first"),
        _gradient("gradient accumulator (this block)", whole["block"], frozenset({BLOCK_REDUCE}),
                  "one", "any", "first"),
        _gradient("gradient accumulator (head, first)", whole["head"], blocks | at_embedding, "one",
                  "last", "first"),
        _gradient("gradient accumulator (blocks, first)", whole["block"], at_embedding, "layer",
                  "any", "first"),
        # the embedding's gradient is dense over the whole vocabulary before it is accumulated
        _gradient("gradient accumulator (embedding, first)",
                  np.maximum(hidden, table) * several, at_embedding, "one", "first", "first"),
        _gradient("gradient of the embedding output", hidden * several, at_embedding, "one",
                  "first", "later"),
    ]  # fmt: skip


def _saved(
    work: RankWork, tensor: SavedTensor, recipe: PrecisionRecipe, profile: CoreProfile
) -> list[MemoryTerm]:
    """A saved tensor; with offload what stays on the device, and what is there on its way."""
    held = tensor.held_bytes(recipe)
    whole, modes = work.tensor_bytes(held), tensor.kept_in(profile.selective_modules)
    offload = profile.offload
    formula, source = formula_text(held), "framework profile: saved tensors"
    inputs = partial(tensor_inputs, work, held)
    if not offload.share:
        return [
            MemoryTerm(
                name=tensor.name, bytes=whole, live=frozenset(tensor.live), scale="saved_layer",
                modes=modes, owner=OWNER, formula=formula, inputs=inputs, source=source,
            )
        ]  # fmt: skip
    away = np.rint(offload.share * whole).astype(np.int64)
    terms = [
        MemoryTerm(
            name=tensor.name, bytes=whole - away, live=frozenset(tensor.live), scale="saved_layer",
            modes=modes, owner=OWNER, formula=f"(1 - {offload.share:g}) x ({formula})",
            inputs=inputs, source=source,
        )
    ]  # fmt: skip
    ways = (
        ("working_layer", offload.chunks, ALWAYS), ("one", offload.layers, frozenset(tensor.live)),
    )  # fmt: skip
    for scale, times, live in ways:
        if times and live:
            terms.append(
                MemoryTerm(
                    name=f"{tensor.name} (on its way)", scale=scale, live=live, modes=modes,
                    bytes=np.rint(times * away).astype(np.int64), owner=OWNER,
                    formula=f"{times:g} x {offload.share:g} x ({formula})", inputs=inputs,
                    source="framework profile: offload",
                )
            )  # fmt: skip
    return terms


def _head_saved(work: RankWork, tensor: SavedTensor) -> MemoryTerm:
    return MemoryTerm(
        name=tensor.name, bytes=work.tensor_bytes(tensor.bytes),
        live=frozenset(tensor.live) & {LOSS, HEAD_BACKWARD}, scale="micro_batch", on="last",
        owner=OWNER, formula=formula_text(tensor.bytes), source="framework profile: head",
        inputs=partial(tensor_inputs, work, tensor.bytes),
    )  # fmt: skip


def _loss(work: RankWork, profile: CoreProfile) -> list[MemoryTerm]:
    """Logits and their copies: between forward and backward, and while the loss is computed."""
    if not profile.loss:
        return []
    loss = profile.losses[profile.loss]
    ways = (
        ("logits in flight", loss.held, "micro_batch", frozenset[str]()),
        ("logits and loss", loss.peak, "one", frozenset({LOSS})),
    )  # fmt: skip
    return [
        MemoryTerm(
            name=name, bytes=work.tensor_bytes({"logits": each}), live=live, scale=scale, on="last",
            owner=OWNER, formula=f"{each:g} B x logits",
            inputs=partial(tensor_inputs, work, {"logits": each}),
            source=f"framework profile: losses.{profile.loss}",
        )
        for name, each, scale, live in ways
    ]  # fmt: skip


def _head_pending(work: RankWork) -> MemoryTerm:
    """What the head's weight gradient needs where it waits."""
    formula = {"hidden": 2.0, "logits": 2.0}
    return MemoryTerm(
        name="head input and logit gradients", bytes=work.tensor_bytes(formula),
        scale="pending", on="last", owner=OWNER, inputs=partial(tensor_inputs, work, formula),
        formula="2 B x hidden + 2 B x logits per micro-batch whose weight gradients wait",
        source="Qi et al. 2023 (arXiv 2401.10241), section 2: the weight gradient needs both",
    )  # fmt: skip


def _fixed(work: RankWork, profile: CoreProfile) -> list[MemoryTerm]:
    """Position table, library workspace, token ids, runtime context."""
    ones = np.ones(len(work), dtype=np.int64)
    steps = np.where(work.pipelined, work.micro_batches, 1)
    rope = profile.rope_table_bytes if work.model.position == "rope" else 0.0
    return [
        MemoryTerm(
            name="position table", bytes=work.tensor_bytes({"whole_positions": rope}), scale="chunk",
            owner=OWNER, formula=f"{rope:g} B x whole_positions, per model chunk",
            inputs=partial(tensor_inputs, work, {"whole_positions": rope}),
            source="measured on H200 (torchtitan keeps it for the whole sequence)",
        ),
        MemoryTerm(
            name="library workspace", bytes=ones * profile.workspace_bytes, owner=OWNER,
            formula="constant", source="framework profile: workspace",
        ),
        MemoryTerm(
            name="token ids and labels",
            bytes=work.tensor_bytes({"whole_tokens": profile.token_bytes}) * steps, owner=OWNER,
            formula=f"{profile.token_bytes:g} B x whole_tokens x micro-batches held",
            inputs=lambda: {"whole_tokens": work.elements("whole_tokens"),
                            "micro-batches held": steps},
            source="measured on H200",
        ),
        MemoryTerm(
            name="runtime context", bytes=ones * profile.context_bytes, reserve=True, owner=OWNER,
            formula="constant", source="framework profile: context",
        ),
    ]  # fmt: skip
