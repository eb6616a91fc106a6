"""Megatron-Bridge configurations: ``KEY=VALUE`` overrides, and Python recipes by their literals.

A recipe is parsed, never imported: what is no literal is left out with a note, or refused where the
estimate would hang on it.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from autopar_core.api import InputError
from autopar_megatron.bridge_names import SECTIONS, bridge_settings, is_bridge_key
from autopar_megatron.settings import Settings


MAX_DEPTH = 40
MAX_CHARACTERS = 1 << 20
# Constructor -> section of the container that it fills.
_BUILDERS = {
    "GPTModelProvider": "model", "LlamaModelProvider": "model", "TrainingConfig": "train",
    "DistributedDataParallelConfig": "ddp", "GPTDatasetConfig": "dataset",
    "MockGPTDatasetConfig": "dataset", "TokenizerConfig": "tokenizer",
    "ValidationConfig": "validation", "DistributedInitConfig": "dist",
}  # fmt: skip
_KEY = rf"(?:{'|'.join(SECTIONS)})\.\w+|mixed_precision"
_OVERRIDE = re.compile(rf"^\s*(?:\+\+?)?({_KEY})=(.*?)\s*\\?$")
# Fields that the estimate hangs on: a value that is no literal is refused.
_NEEDED = frozenset({
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "vocab_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "virtual_pipeline_model_parallel_size", "micro_batch_size",
    "global_batch_size", "seq_length", "pipeline_model_parallel_layout", "gated_linear_unit",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "sequence_parallel",
})  # fmt: skip


def looks_like_overrides(text: str) -> bool:
    """Whether every line is a ``KEY=VALUE`` override of the container."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    return bool(lines) and all(_OVERRIDE.match(line) for line in lines)


def looks_like_recipe(text: str) -> bool:
    """Whether a Python text builds a configuration of Megatron-Bridge."""
    return "megatron.bridge" in text and bool(re.search(r"^(import|from)\s", text, re.MULTILINE))


def read_overrides(label: str, text: str) -> Settings:
    """Settings of ``KEY=VALUE`` lines."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _OVERRIDE.match(line)
        if match:
            pairs.append((match[1], match[2].strip("\"'"), number))
    return bridge_settings(label, pairs)


def read_recipe(label: str, text: str) -> tuple[Settings, int, tuple[str, ...]]:
    """(settings of the literals of a recipe, its constant DEVICES or 0, what was left out).

    Raises:
        InputError: When it is no Python, has several recipes, or hides a value that is needed.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(label, f"is larger than {MAX_CHARACTERS >> 20} MiB; no recipe is")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(label, f"is no valid Python: {str(error)[:120]}") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    recipes = [node for node in functions if _Collector(label, tree).collect(node)]
    if len(recipes) > 1:
        named = " and ".join(f"{node.name} (line {node.lineno})" for node in recipes[:3])
        raise InputError(label, f"has several recipes, {named}; keep one in the file")
    collector = _Collector(label, tree)
    if not collector.collect(recipes[0] if recipes else tree):
        raise InputError(label, "sets no literal field of a Megatron-Bridge configuration")
    devices = collector.names.get("DEVICES")
    settings = bridge_settings(label, collector.pairs)
    return settings, devices if type(devices) is int else 0, tuple(collector.notes)


class _Collector:
    """Walks over assignments and constructor calls in order."""

    def __init__(self, label: str, tree: ast.Module) -> None:
        self.label = label
        self.pairs: list[tuple[str, Any, int]] = []
        self.notes: list[str] = []
        self.names: dict[str, Any] = {}
        self.sections: dict[str, str] = {}
        self._constants(tree)

    def _constants(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known, value = self._literal(node.value)
                if known:
                    self.names[node.targets[0].id] = value

    def collect(self, node: ast.Module | ast.FunctionDef) -> list[tuple[str, Any, int]]:
        """Pairs of the statements below a node, nested functions and branches left out."""
        for statement in node.body:
            if isinstance(statement, ast.If | ast.For | ast.While | ast.Try | ast.With):
                if self._speaks(statement):
                    raise InputError(
                        f"{self.label}: line {statement.lineno}", "sets a field under a condition or in "
                        "a loop; only straight-line recipes are read",
                    )  # fmt: skip
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                self._assign(statement)
            elif isinstance(statement, ast.Return | ast.Expr) and statement.value is not None:
                self._calls(statement.value)
        return self.pairs

    def _speaks(self, node: ast.AST) -> bool:
        return any(
            isinstance(inner, ast.Attribute)
            and inner.attr in _NEEDED
            and isinstance(inner.ctx, ast.Store)
            for inner in ast.walk(node)
        )

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return
        for target in targets:
            if isinstance(target, ast.Name):
                self._named(target.id, node.value)
            elif isinstance(target, ast.Attribute):
                self._attribute(target, node.value)
        self._calls(node.value)

    def _named(self, name: str, value: ast.expr) -> None:
        known, literal = self._literal(value)
        if known:
            self.names[name] = literal
        if isinstance(value, ast.Call):
            section = _BUILDERS.get(_last_name(value.func), "")
            if section:
                self.sections[name] = section

    def _attribute(self, target: ast.Attribute, value: ast.expr) -> None:
        path = _dotted(target)
        if path is None:
            return
        section = self.sections.get(path[0])
        if section and len(path) == 2:
            key = f"{section}.{path[1]}"
        else:
            key = ".".join(path[1:]) if len(path) in (2, 3) else ""
        if is_bridge_key(key):
            self._pair(key, value, target.lineno, replace=True)

    def _calls(self, value: ast.expr) -> None:
        for call in ast.walk(value):
            if not isinstance(call, ast.Call):
                continue
            section = _BUILDERS.get(_last_name(call.func), "")
            for keyword in call.keywords:
                if section and keyword.arg:
                    self._pair(f"{section}.{keyword.arg}", keyword.value, keyword.value.lineno)
                elif (
                    _last_name(call.func) == "ConfigContainer" and keyword.arg == "mixed_precision"
                ):
                    self._pair("mixed_precision", keyword.value, keyword.value.lineno)

    def _pair(self, key: str, value: ast.expr, line: int, replace: bool = False) -> None:
        known, literal = self._literal(value)
        name = key.rsplit(".", 1)[-1]
        if not known and name in _NEEDED:
            raise InputError(
                f"{self.label}: line {line}", f"{key} is computed; write its value as a literal"
            )
        if not known and name == "mixed_precision" and isinstance(value, ast.Call | ast.Name):
            known, literal = True, _last_name(value.func if isinstance(value, ast.Call) else value)
        if not known:
            if name != "activation_func":
                self.notes.append(f"line {line}: {key} is computed and was not read")
            return
        if replace:  # a later assignment of a program wins
            self.pairs = [pair for pair in self.pairs if pair[0] != key]
        self.pairs.append((key, literal, line))

    def _literal(self, node: ast.expr, depth: int = 0) -> tuple[bool, Any]:
        """(known, value) of constants, names of constants, lists, and arithmetic on whole numbers."""
        if depth > MAX_DEPTH:
            return False, None
        if isinstance(node, ast.Constant):
            return True, node.value
        if isinstance(node, ast.Name):
            return node.id in self.names, self.names.get(node.id)
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._literal(each, depth + 1) for each in node.elts]
            return all(known for known, _ in items), [value for _, value in items]
        if isinstance(node, ast.BinOp):
            return self._sum(node, depth)
        return False, None

    def _sum(self, node: ast.BinOp, depth: int) -> tuple[bool, Any]:
        left, right = (self._literal(each, depth + 1) for each in (node.left, node.right))
        if not left[0] or not right[0]:
            return False, None
        one, other = left[1], right[1]
        if type(one) is not int or type(other) is not int or max(abs(one), abs(other)) > 1 << 40:
            return False, None
        if isinstance(node.op, ast.Mult):
            return True, one * other
        if isinstance(node.op, ast.Add):
            return True, one + other
        if isinstance(node.op, ast.Sub):
            return True, one - other
        if isinstance(node.op, ast.FloorDiv) and other:
            return True, one // other
        return False, None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _dotted(node: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None
