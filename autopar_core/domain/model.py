"""The shape of a dense decoder-only transformer and its exact parameter count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import attrs


Extent = Literal["attention_heads", "kv_heads", "ffn_width", "hidden"]
Norm = Literal["rmsnorm", "layernorm"]
Position = Literal["rope", "learned", "alibi"]
QkNorm = Literal["none", "head", "full"]

_Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


class Matrix(NamedTuple):
    """One weight matrix of a block, laid out as in ``torch.nn.Linear``.

    Attributes:
        name: Role: ``query``, ``key``, ``value``, ``output``, ``gate``, ``up`` or ``down``.
        rows: Output features.
        cols: Input features.
        rows_extent: What the rows count; tensor parallelism divides every extent but ``hidden``.
        cols_extent: What the columns count.
    """

    name: str
    rows: int
    cols: int
    rows_extent: Extent
    cols_extent: Extent

    @property
    def parameters(self) -> int:
        """Number of weights, rows times columns."""
        return self.rows * self.cols


def _integer(minimum: int) -> _Validator:
    wanted = "a positive integer" if minimum else "zero or a positive integer"

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(f"model.{attribute.name} = {value!r}: must be {wanted}")

    return check


def _one_of(*allowed: str) -> _Validator:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            choices = ", ".join(allowed)
            raise ValueError(f"model.{attribute.name} = {value!r}: must be one of {choices}")

    return check


def _probability(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"model.{attribute.name} = {value!r}: must be at least 0 and below 1")


def _dense(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _integer(0)(_, attribute, value)
    if value > 1:
        raise ValueError(
            f"model.experts = {value}: mixture-of-experts is not supported; "
            "autopar plans dense models only"
        )


_positive = _integer(1)
_count = _integer(0)


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Shape of a dense decoder; every size is a number of elements.

    Attributes:
        name: Label used in reports.
        num_layers: Transformer blocks.
        hidden: Width of the residual stream.
        ffn_hidden: Width inside the MLP.
        heads: Query heads.
        kv_heads: Key and value heads; must divide ``heads``.
        head_dim: Width of one head; 0 means ``hidden // heads`` and is replaced by it.
        vocab: Rows of the token embedding, padding included.
        gated_mlp: Three MLP matrices (gate, up, down) instead of two (up, down).
        tied_embeddings: The output head reuses the token embedding.
        norm: ``layernorm`` norms carry a bias, ``rmsnorm`` norms do not.
        norms_per_layer: Norms over ``hidden`` in one block.
        final_norm: A norm follows the last block.
        qk_norm: Query and key norms: over each ``head`` or over the ``full`` projection.
        qkv_bias: The query, key and value projections have biases.
        attention_out_bias: The attention output projection has a bias.
        mlp_bias: Every MLP matrix has a bias.
        activation_parameters: Learned values of the activation in one block (xIELU has two).
        head_bias: The output head has a bias of ``vocab`` elements.
        position: Position encoding; only ``learned`` has parameters.
        position_rows: Rows of the learned position table.
        embedding_norm: A norm follows the token embedding.
        embedding_width: Width of the token embedding when it differs from ``hidden``; two
            bias-free projections then connect the widths. 0 means ``hidden``.
        hidden_dropout, attention_dropout: Dropout in training, on the residual branches and on the
            attention probabilities; above 0 its masks are kept for the backward.
        max_position_embeddings: Longest sequence the model card allows; 0 means unstated.
        experts: Only 0 and 1 (dense) are accepted.
    """

    name: str = ""
    num_layers: int = attrs.field(validator=_positive)
    hidden: int = attrs.field(validator=_positive)
    ffn_hidden: int = attrs.field(validator=_positive)
    heads: int = attrs.field(validator=_positive)
    kv_heads: int = attrs.field(validator=_positive)
    head_dim: int = attrs.field(default=0, validator=_count)
    vocab: int = attrs.field(validator=_positive)
    gated_mlp: bool = True
    tied_embeddings: bool = False
    norm: Norm = attrs.field(default="rmsnorm", validator=_one_of("rmsnorm", "layernorm"))
    norms_per_layer: int = attrs.field(default=2, validator=_count)
    final_norm: bool = True
    qk_norm: QkNorm = attrs.field(default="none", validator=_one_of("none", "head", "full"))
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    activation_parameters: int = attrs.field(default=0, validator=_count)
    head_bias: bool = False
    position: Position = attrs.field(default="rope", validator=_one_of("rope", "learned", "alibi"))
    position_rows: int = attrs.field(default=0, validator=_count)
    embedding_norm: bool = False
    embedding_width: int = attrs.field(default=0, validator=_count)
    hidden_dropout: float = attrs.field(default=0.0, validator=_probability)
    attention_dropout: float = attrs.field(default=0.0, validator=_probability)
    max_position_embeddings: int = attrs.field(default=0, validator=_count)
    experts: int = attrs.field(default=0, validator=_dense)

    def __attrs_post_init__(self) -> None:
        """Check the fields against each other and resolve ``head_dim = 0``."""
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model.kv_heads = {self.kv_heads}: must divide model.heads = {self.heads}"
            )
        if self.head_dim == 0:
            if self.hidden % self.heads:
                raise ValueError(
                    f"model.heads = {self.heads}: does not divide model.hidden = {self.hidden}; "
                    "give model.head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if (self.position == "learned") != (self.position_rows > 0):
            raise ValueError(
                f"model.position_rows = {self.position_rows}: must be positive with learned "
                f"positions and 0 otherwise, and model.position is {self.position!r}"
            )

    @property
    def query_width(self) -> int:
        """Width of all query heads, ``heads * head_dim``; it may differ from ``hidden``."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads (and of all value heads), ``kv_heads * head_dim``."""
        return self.kv_heads * self.head_dim

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the weight matrices of one block in forward order, shapes (out, in)."""
        h, q, kv, f = self.hidden, self.query_width, self.kv_width, self.ffn_hidden
        gate = (Matrix("gate", f, h, "ffn_width", "hidden"),) if self.gated_mlp else ()
        return (
            Matrix("query", q, h, "attention_heads", "hidden"),
            Matrix("key", kv, h, "kv_heads", "hidden"),
            Matrix("value", kv, h, "kv_heads", "hidden"),
            Matrix("output", h, q, "hidden", "attention_heads"),
            *gate,
            Matrix("up", f, h, "ffn_width", "hidden"),
            Matrix("down", h, f, "hidden", "ffn_width"),
        )

    @property
    def block_vectors(self) -> int:
        """Elements in the norms and biases of one block."""
        return self.block_norms + sum(matrix.rows for matrix in self.biases())

    @property
    def block_norms(self) -> int:
        """Elements in the norms of one block; every rank has all of them."""
        count = self.norms_per_layer * self._norm_parameters(self.hidden)
        count += self.activation_parameters
        if self.qk_norm == "head":
            count += 2 * self._norm_parameters(self.head_dim)
        elif self.qk_norm == "full":
            count += self._norm_parameters(self.query_width + self.kv_width)
        return count

    def biases(self) -> tuple[Matrix, ...]:
        """Matrices with a bias, one element per row: divided as their rows are."""
        return tuple(matrix for matrix in self.matrices() if self._has_bias(matrix.name))

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: its matrices and its vectors."""
        return sum(matrix.parameters for matrix in self.matrices()) + self.block_vectors

    @property
    def embedding_parameters(self) -> int:
        """Token embedding with its projection to ``hidden``, position table and norm."""
        count = self.vocab * (self.embedding_width or self.hidden) + self._projection
        count += self.position_rows * self.hidden
        return count + (self._norm_parameters(self.hidden) if self.embedding_norm else 0)

    @property
    def head_parameters(self) -> int:
        """Output head: its matrix (0 when tied), the projection from ``hidden`` and the bias."""
        count = 0 if self.tied_embeddings else self.vocab * (self.embedding_width or self.hidden)
        return count + self._projection + (self.vocab if self.head_bias else 0)

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm after the last block."""
        return self._norm_parameters(self.hidden) if self.final_norm else 0

    @property
    def parameters(self) -> int:
        """Exact number of parameters of the whole model, a tied embedding counted once."""
        return (
            self.embedding_parameters
            + self.num_layers * self.block_parameters
            + self.final_norm_parameters
            + self.head_parameters
        )

    @property
    def _projection(self) -> int:
        """Parameters of one projection between ``embedding_width`` and ``hidden``."""
        return self.embedding_width * self.hidden if self.embedding_width != self.hidden else 0

    def _norm_parameters(self, width: int) -> int:
        return width * (2 if self.norm == "layernorm" else 1)

    def _has_bias(self, matrix: str) -> bool:
        if matrix in ("query", "key", "value"):
            return self.qkv_bias
        return self.attention_out_bias if matrix == "output" else self.mlp_bias
