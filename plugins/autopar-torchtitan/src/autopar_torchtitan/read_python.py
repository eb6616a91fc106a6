"""Python configuration functions, releases from 0.3.0: walked over by their syntax, never run."""

from __future__ import annotations

import ast
import re
from typing import Any

from autopar_core.api import InputError
from autopar_torchtitan.flavors import OTHER_FAMILIES, families
from autopar_torchtitan.presets import OTHER_FUNCTIONS, OTHER_PREFIXES, PRESETS, preset_config
from autopar_torchtitan.python_settings import settings_of
from autopar_torchtitan.python_values import Made, Placed, TooMuch, Values
from autopar_torchtitan.settings import Computed, Setting, Settings


MAX_CHARACTERS = 1 << 20
_MAX_CALLS = 8
REGISTRIES = ("model_registry", "build_model_config")
_PARTS = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
}
_TOKENS = re.compile(
    r"num_tokens_per_(?:microbatch_per_dp_rank|train_step)|max_context_length|num_pp_microbatches"
    r"|torchtitan_recipes"
)
_MAKES = ("Config", "TrainingConfig", "ParallelismConfig", *REGISTRIES)


def looks_like_python(text: str) -> bool:
    """Whether a Python text configures TorchTitan's trainer."""
    return (
        bool(re.search(r"^(?:from|import)\s+torchtitan", text, re.MULTILINE))
        and bool(re.search(r"^def\s", text, re.MULTILINE))
        and bool(
            re.search(r"Trainer\.Config|ParallelismConfig|config_registry|TrainingConfig", text)
        )
    )


def read_python(label: str, text: str) -> Settings:
    """The settings of the one configuration function of a file.

    Raises:
        InputError: When it is no Python, has no or several configurations, or hides what is needed.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(label, f"is larger than {MAX_CHARACTERS >> 20} MiB; no configuration is")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(label, f"is no valid Python: {str(error)[:120]}") from None
    module = _Module(label, tree, tokens=bool(_TOKENS.search(text)))
    try:
        config = module.configuration()
    except (TooMuch, RecursionError):
        raise InputError(label, "makes more values than a configuration does") from None
    devices = module.constants.get("DEVICES")
    place = Setting(devices, "constant DEVICES") if type(devices) is int and devices > 0 else None
    return settings_of(label, config, tokens=module.tokens, devices=place)


class _Module:
    """The functions of a file and what their names mean."""

    def __init__(self, label: str, tree: ast.Module, tokens: bool) -> None:
        self.label, self.tokens = label, tokens
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.imported: dict[str, str] = {}
        self.family = ""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._import(node)
        self.constants: dict[str, Any] = {}
        walk = _Function(self, self.constants, 0)
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                walk.step(statement)

    def _import(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for each in node.names:
            self.imported[each.asname or each.name] = each.name
        words = module.split(".")
        named = [word for word in words if word in (*families(), *OTHER_FAMILIES)]
        if named and ("models" in words or "torchtitan_recipes" in words):
            self.family = self.family or named[0]

    def configuration(self) -> Made:
        """The configuration of the only function that makes one.

        Raises:
            InputError: When there is none, or several.
        """
        makers = [name for name, node in self.functions.items() if self._makes(node)]
        inner = {
            call.func.id
            for name in makers
            for call in ast.walk(self.functions[name])
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        }
        outer = [name for name in makers if name not in inner]
        if len(outer) > 1:
            named = " and ".join(f"{n} (line {self.functions[n].lineno})" for n in outer[:3])
            raise InputError(
                self.label, f"has several configurations, {named}; keep one in the file"
            )
        if not outer:
            raise InputError(self.label, "has no function that returns a Trainer.Config")
        config = self.call(outer[0], 0)
        if not isinstance(config, Made) or config.kind != "Trainer":
            line = self.functions[outer[0]].lineno
            raise InputError(
                f"{self.label}: line {line}, {outer[0]}", "returns no configuration that its literals "
                "tell; start from Trainer.Config(...) or a function of config_registry",
            )  # fmt: skip
        return config

    def _makes(self, node: ast.FunctionDef) -> bool:
        if node.returns is not None and "Trainer.Config" in ast.unparse(node.returns):
            return True
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
        names = {last_name(call.func) for call in calls}
        begins = {self.imported.get(name, name) for name in names}
        return any(name in _MAKES[1:] for name in names) or bool(begins & PRESETS.keys())

    def call(self, name: str, depth: int) -> Any:
        """What a function of the file returns when it is called without arguments."""
        if depth > _MAX_CALLS:
            raise TooMuch
        return _Function(self, dict(self.constants), depth).run(self.functions[name])

    def known(self, name: str, line: int) -> Made | None:
        """The configuration of an imported function of TorchTitan.

        Raises:
            InputError: When it is one for a model that is no dense decoder.
        """
        real = self.imported.get(name, name)
        what = OTHER_FUNCTIONS.get(real) or next(
            (why for prefix, why in OTHER_PREFIXES.items() if real.startswith(prefix)), ""
        )
        if what and name in self.imported:
            raise InputError(
                f"{self.label}: line {line}",
                f"{real} configures {what}; autopar plans dense models only",
            )
        return preset_config(real, self.tokens) if real in PRESETS else None


class _Function:
    """Walks over the statements of one function."""

    def __init__(self, module: _Module, names: dict[str, Any], depth: int) -> None:
        self.module, self.depth = module, depth
        self.values = Values(names, self._call)

    def run(self, node: ast.FunctionDef) -> Any:
        """What the function returns."""
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults = node.args.defaults
        for each, default in zip(
            arguments[len(arguments) - len(defaults) :], defaults, strict=True
        ):
            self.values.names[each.arg] = self.values.of(default)
        for statement in node.body:
            if isinstance(statement, ast.Return):
                return self.values.of(statement.value) if statement.value else None
            self.step(statement)
        return None

    def step(self, node: ast.stmt) -> None:
        """One statement.

        Raises:
            InputError: When it sets a configuration under a condition or in a loop.
        """
        if isinstance(node, ast.Assign):
            value = self.values.of(node.value)
            for target in node.targets:
                self._put(target, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._put(node.target, self.values.of(node.value))
        elif isinstance(node, ast.AugAssign):
            before = self.values.of(_loaded(node.target))
            self._put(node.target, self.values.sum(before, node.op, self.values.of(node.value)))
        elif isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.With | ast.Match):
            self._hidden(node)

    def _hidden(self, node: ast.stmt) -> None:
        for inner in ast.walk(node):
            if not isinstance(inner, ast.Name | ast.Attribute) or not isinstance(
                inner.ctx, ast.Store
            ):
                continue
            base = inner
            while isinstance(base, ast.Attribute) and isinstance(
                base.value, ast.Name | ast.Attribute
            ):
                base = base.value
            name = base.id if isinstance(base, ast.Name) else ""
            if isinstance(self.values.names.get(name), Made):
                raise InputError(
                    f"{self.module.label}: line {inner.lineno}", f"sets {ast.unparse(inner)} under a "
                    "condition or in a loop; only straight-line configurations are read",
                )  # fmt: skip
            self.values.names[name] = Computed(f"{name} is set under a condition or in a loop")

    def _put(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.values.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value)
            if owner is not None:
                owner.fields[target.attr] = Placed(value, f"line {target.lineno}")

    def _owner(self, node: ast.expr) -> Made | None:
        """The object whose field is set; a part that is not there yet begins with its defaults."""
        if isinstance(node, ast.Attribute):
            outer = self._owner(node.value)
            if outer is not None and node.attr not in outer.fields and node.attr in _PARTS:
                outer.fields[node.attr] = Placed(Made(_PARTS[node.attr]), f"line {node.lineno}")
        found = self.values.of(node)
        return found if isinstance(found, Made) else None

    def _call(self, node: ast.Call) -> Any:
        name = last_name(node.func)
        if isinstance(node.func, ast.Name) and name in self.module.functions:
            if node.args or node.keywords:
                return Computed(f"{name} is called with arguments")
            return self.module.call(name, self.depth + 1)
        if isinstance(node.func, ast.Name):
            real = self.module.imported.get(name, name)
            known = self.module.known(name, node.lineno)
            if known is not None:
                return known
            name = real
        if name == "Config" and isinstance(node.func, ast.Attribute):
            name = last_name(node.func.value)
        made = Made(name)
        for place, each in enumerate(node.args):
            if name in REGISTRIES and not place:
                made.fields["flavor"] = Placed(self.values.of(each), f"line {node.lineno}")
        for keyword in node.keywords:
            if keyword.arg:
                value = self.values.of(keyword.value)
                made.fields[keyword.arg] = Placed(value, f"line {keyword.value.lineno}")
        if name in REGISTRIES:
            made.kind = REGISTRIES[0]
            family = self.module.family
            made.fields.setdefault("family", Placed(family, f"line {node.lineno}, {name}"))
        return made


def _loaded(node: ast.expr) -> ast.expr:
    """A target of an assignment as an expression to read."""
    if isinstance(node, ast.Attribute):
        return ast.Attribute(node.value, node.attr, ast.Load())
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node


def last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
