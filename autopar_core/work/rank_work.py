"""Work of one rank: extents after all shards, parameters, linears, attention calls, tensor sizes.

Everything is a product of named extents, so shards of any number of dimensions combine by dividing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from attrs import field, frozen

from autopar_core.domain.arrays import Array, Bools, Floats, Ints, ceil_div
from autopar_core.domain.model import Matrix, ModelConfig
from autopar_core.domain.terms import (
    AttentionCall,
    AttentionCalls,
    Divide,
    Extent,
    Rounding,
    Shard,
)


UNITS = ("block", "embedding", "head")
COPIES = (Extent.PARAMETER_COPIES, Extent.GRADIENT_COPIES, Extent.OPTIMIZER_COPIES)


@frozen
class Linear:
    """One GEMM of a block: (N,) input and output features of the rank."""

    name: str
    n_in: Ints
    n_out: Ints


def _divide(size: int, base: int, divides: Iterable[Divide], extent: Extent) -> Ints:
    """Base extent divided by every divisor that concerns it, each with its rounding."""
    value = np.full(size, base, dtype=np.int64)
    for one in divides:
        if one.extent is not extent:
            continue
        if one.rounding is Rounding.PADDED:
            value = ceil_div(value, one.by * one.multiple) * one.multiple
        elif one.rounding is Rounding.REPLICATED:
            value = np.maximum(1, ceil_div(value, one.by))
        else:
            value = ceil_div(value, one.by)
    return value


@frozen(eq=False)
class RankWork:
    """What one rank has to do and to hold, all values (N,).

    Attributes:
        model: The unsharded model.
        seq_len: Tokens of a whole sequence.
        extents: Extents after all shards.
        copies: Divisor and rounding of the parameter, gradient and optimizer copies.
        calls: Attention calls per layer where a plugin replaced them, with their rows.
        pipelined: Rows with more than one (virtual) stage.
        micro_batches: Micro-batches per step.
    """

    model: ModelConfig
    seq_len: int
    extents: Mapping[Extent, Ints]
    copies: Mapping[Extent, tuple[Divide, ...]]
    calls: tuple[AttentionCalls, ...]
    pipelined: Bools
    micro_batches: Ints
    _cache: dict[str, Ints] = field(factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls,
        model: ModelConfig,
        seq_len: int,
        micro_batch_size: Ints,
        micro_batches: Ints,
        pipelined: Bools,
        shards: Iterable[Shard],
    ) -> RankWork:
        """Divide the unsharded extents of one micro-batch by every shard."""
        shards = tuple(shards)
        divides = tuple(s for s in shards if isinstance(s, Divide))
        n = len(micro_batch_size)
        whole = {
            Extent.SEQUENCES: 1,
            Extent.TOKENS: seq_len,
            Extent.RESIDUAL_TOKENS: seq_len,
            Extent.MESSAGE_TOKENS: seq_len,
            Extent.QUERY_TOKENS: seq_len,
            Extent.KEY_TOKENS: seq_len,
            Extent.ATTENTION_HEADS: model.heads,
            Extent.KV_HEADS: model.kv_heads,
            Extent.FFN_WIDTH: model.ffn_hidden,
            Extent.VOCABULARY_ROWS: model.vocab,
        }
        extents = {e: _divide(n, base, divides, e) for e, base in whole.items()}
        for name in (Extent.SEQUENCES, Extent.TOKENS, Extent.RESIDUAL_TOKENS,
                     Extent.MESSAGE_TOKENS):  # fmt: skip
            extents[name] = extents[name] * micro_batch_size
        copies = {e: tuple(d for d in divides if d.extent is e) for e in COPIES}
        calls = tuple(s for s in shards if isinstance(s, AttentionCalls))
        return cls(model, seq_len, extents, copies, calls, pipelined, micro_batches)

    def __len__(self) -> int:
        return len(self.micro_batches)

    def extent(self, name: Extent) -> Ints:
        """(N,) extent of the rank after all shards."""
        return self.extents[name]

    def _width(self, what: str) -> Ints:
        if what == "hidden":
            return np.full(len(self), self.model.hidden, dtype=np.int64)
        value = self.extents[Extent(what)]
        return value * self.model.head_dim if what != Extent.FFN_WIDTH.value else value

    def matrices(self) -> tuple[tuple[Matrix, Ints, Ints], ...]:
        """(matrix, rows, columns) of one block after the shards."""
        return tuple(
            (m, self._width(m.rows_extent), self._width(m.cols_extent))
            for m in self.model.matrices()
        )

    def matrix(self, *names: str) -> Ints:
        """Elements of the first named matrix that the block has."""
        for name in names:
            for m, rows, columns in self.matrices():
                if m.name == name:
                    return rows * columns
        raise KeyError(names)

    def vectors(self) -> Ints:
        """(N,) elements in the norms (whole) and biases (divided as the rows they add to) of a block."""
        whole = np.full(len(self), self.model.block_norms, dtype=np.int64)
        return sum((self._width(m.rows_extent) for m in self.model.biases()), start=whole)

    def _unit_matrices(self, unit: str) -> tuple[list[tuple[Ints, Ints]], Ints]:
        """((rows, columns), elements of vectors) of one unit."""
        model, n = self.model, len(self)
        one = np.ones(n, dtype=np.int64)
        vocabulary = self.extents[Extent.VOCABULARY_ROWS]
        width = model.embedding_width or model.hidden
        if unit == "block":
            pairs = [(rows, columns) for _, rows, columns in self.matrices()]
            return pairs, self.vectors()
        if unit == "embedding":
            rest = model.embedding_parameters - model.vocab * width
            return [(vocabulary, one * width)], one * rest
        # a tied head shares the table only; its projection and its bias are its own
        table = 0 if model.tied_embeddings else model.vocab * width
        rest = model.final_norm_parameters + model.head_parameters - table
        return [(vocabulary, one * width)], one * rest

    def parameters(self, unit: str) -> Ints:
        """(N,) parameters of one block, of the embedding, or of the final norm and head.

        A tied head on another stage than the embedding is a second copy of the table; on the same
        stage it has no matrix of its own.
        """
        key = f"parameters {unit}"
        if key not in self._cache:
            pairs, vectors = self._unit_matrices(unit)
            total = sum((rows * columns for rows, columns in pairs), start=vectors * 0) + vectors
            if unit == "head" and self.model.tied_embeddings:
                total = np.where(self.pipelined, total, vectors)
            self._cache[key] = total
        return self._cache[key]

    def held(self, copy: Extent, unit: str) -> Ints:
        """(N,) elements of a copy that the rank holds after state sharding."""
        key = f"held {copy.value} {unit}"
        if key not in self._cache:
            total = self.parameters(unit)
            for divide in self.copies[copy]:
                total = self._divide_copy(total, unit, divide)
            self._cache[key] = total
        return self._cache[key]

    def _divide_copy(self, total: Ints, unit: str, divide: Divide) -> Ints:
        exact = ceil_div(total, divide.by)
        if divide.rounding is not Rounding.ROWS:
            return exact
        pairs, vectors = self._unit_matrices(unit)
        padded = sum((ceil_div(r, divide.by) * c for r, c in pairs), start=vectors * 0)
        if unit == "block":
            hidden = self.model.hidden
            norms = vectors // hidden
            padded = padded + norms * ceil_div(np.full(len(self), hidden), divide.by)
            padded = padded + ceil_div(vectors - norms * hidden, divide.by)
        else:
            padded = padded + ceil_div(vectors, divide.by)
        if unit == "head" and self.model.tied_embeddings:
            padded = np.where(self.pipelined, padded, ceil_div(vectors, divide.by))
        # where nothing is divided the copy is whole, padding or not
        return np.where(divide.by > 1, padded, total)

    def elements(self, name: str) -> Ints:
        """(N,) element count of a tensor by name; see :data:`ELEMENTS`.

        Raises:
            KeyError: Unknown name, with the known ones.
        """
        if name not in self._cache:
            if name not in ELEMENTS:
                raise KeyError(f"no element count {name!r}; known: {', '.join(sorted(ELEMENTS))}")
            self._cache[name] = np.asarray(ELEMENTS[name](self), dtype=np.int64)
        return self._cache[name]

    def tensor_bytes(self, formula: Mapping[str, float]) -> Ints:
        """(N,) bytes of a formula ``{element count: bytes per element}``, rounded to whole bytes."""
        total = np.zeros(len(self), dtype=np.float64)
        for name, per_element in formula.items():
            total += per_element * self.elements(name)
        return np.rint(total).astype(np.int64)

    def linears(self, fused_qkv: bool, fused_gate_up: bool) -> tuple[Linear, ...]:
        """GEMMs of one block; fused ones share their input."""
        fuse = {"query": fused_qkv, "key": fused_qkv, "value": fused_qkv,
                "gate": fused_gate_up, "up": fused_gate_up}  # fmt: skip
        target = {"query": "qkv", "key": "qkv", "value": "qkv", "gate": "gate_up", "up": "gate_up"}
        made: dict[str, Linear] = {}
        for m, rows, columns in self.matrices():
            name = target[m.name] if fuse.get(m.name) else m.name
            before = made.get(name)
            made[name] = Linear(name, columns, rows if before is None else before.n_out + rows)
        return tuple(made.values())

    def attention_calls(self) -> tuple[tuple[Array, AttentionCall], ...]:
        """(rows as 0/1, call) pairs; the call of the unsplit layer where no plugin replaced it."""
        n = len(self)
        one = np.ones(n, dtype=np.int64)
        replaced = np.zeros(n, dtype=bool)
        pairs: list[tuple[Array, AttentionCall]] = []
        for answer in self.calls:
            replaced |= answer.rows
            pairs += [(answer.rows.astype(np.int64), call) for call in answer.calls]
        half: Floats = np.full(n, 0.5)
        whole = AttentionCall(
            count=one, query_divisor=one, key_divisor=one, heads_divisor=one, work_share=half
        )
        return ((~replaced).astype(np.int64), whole), *pairs


ELEMENTS: dict[str, Callable[[RankWork], Ints]] = {
    "residual_hidden": lambda w: w.extent(Extent.RESIDUAL_TOKENS) * w.model.hidden,
    "message_hidden": lambda w: w.extent(Extent.MESSAGE_TOKENS) * w.model.hidden,
    "hidden": lambda w: w.extent(Extent.TOKENS) * w.model.hidden,
    "query": lambda w: (
        w.extent(Extent.TOKENS) * w.extent(Extent.ATTENTION_HEADS) * w.model.head_dim
    ),
    "key_value": lambda w: w.extent(Extent.TOKENS) * w.extent(Extent.KV_HEADS) * w.model.head_dim,
    "ffn": lambda w: w.extent(Extent.TOKENS) * w.extent(Extent.FFN_WIDTH),
    "ffn_in": lambda w: (
        w.extent(Extent.TOKENS) * w.extent(Extent.FFN_WIDTH) * (2 if w.model.gated_mlp else 1)
    ),
    "ffn_gate": lambda w: (
        w.extent(Extent.TOKENS) * w.extent(Extent.FFN_WIDTH) * (1 if w.model.gated_mlp else 0)
    ),
    "normed_query": lambda w: w.elements("query") * (w.model.qk_norm != "none"),
    "normed_key": lambda w: w.elements("key_value") * (w.model.qk_norm != "none"),
    "attention_rows": lambda w: w.extent(Extent.TOKENS) * w.extent(Extent.ATTENTION_HEADS),
    "attention_scores": lambda w: (
        w.extent(Extent.TOKENS) * w.extent(Extent.ATTENTION_HEADS) * w.seq_len
    ),
    "dropped_scores": lambda w: w.elements("attention_scores") * (w.model.attention_dropout > 0),
    "dropped_hidden": lambda w: w.elements("residual_hidden") * (w.model.hidden_dropout > 0),
    "residual_rows": lambda w: w.extent(Extent.RESIDUAL_TOKENS),
    "logits": lambda w: w.extent(Extent.TOKENS) * w.extent(Extent.VOCABULARY_ROWS),
    "whole_logits": lambda w: w.extent(Extent.TOKENS) * w.model.vocab,
    "head_positions": lambda w: w.extent(Extent.TOKENS) * w.model.head_dim,
    "whole_positions": lambda w: np.full(len(w), w.seq_len * w.model.head_dim, dtype=np.int64),
    "whole_tokens": lambda w: w.extent(Extent.SEQUENCES) * w.seq_len,
    "up_matrix": lambda w: w.matrix("up"),
    "out_matrix": lambda w: w.matrix("output"),
    "norm_vectors": lambda w: w.vectors(),
    "block_parameters": lambda w: w.parameters("block"),
    "embedding_parameters": lambda w: w.parameters("embedding"),
    "head_parameters": lambda w: w.parameters("head"),
    "head_matrix": lambda w: (
        w.extent(Extent.VOCABULARY_ROWS) * (w.model.embedding_width or w.model.hidden)
    ),
    "whole_embedding": lambda w: np.full(
        len(w), w.model.vocab * (w.model.embedding_width or w.model.hidden), dtype=np.int64
    ),
    "held_gradients_block": lambda w: w.held(Extent.GRADIENT_COPIES, "block"),
    "held_gradients_embedding": lambda w: w.held(Extent.GRADIENT_COPIES, "embedding"),
    "held_gradients_head": lambda w: w.held(Extent.GRADIENT_COPIES, "head"),
}
"""Element counts of one rank and micro-batch by name, products of extents after the shards."""
