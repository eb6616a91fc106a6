"""What a configuration of TorchTitan sets, whatever its dialect, with the place of every value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autopar_core.api import FORMAT_DEFAULT, InputError


TOML, SEQUENCES, TOKENS = "toml", "sequences", "tokens"
# Fields that autopar reads, with what they mean when nothing is said: job_config.py of 0.2.2 and
# config/configs.py of 0.3.0 agree on them.
DEFAULTS: Mapping[str, Any] = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "model.converters": [],
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "training.enable_cpu_offload": False,
    "training.disable_cuda_graphs": False,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.enable_sequence_parallel": True,
    "parallelism.disable_loss_parallel": False,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.spmd_backend": "spmd_types",
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.module_fqns_per_model_part": None,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_schedule_csv": "",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.context_parallel_rotate_method": "allgather",
    "parallelism.expert_parallel_degree": 1,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "compile.enable": False,
    "compile.components": ["model", "loss"],
    "compile.enable_async_tensor_parallel": False,
}
_KINDS: dict[type, str] = {int: "a whole number", bool: "true or false", str: "a text"}


class Computed(NamedTuple):
    """A value of a Python file that its literals do not tell."""

    why: str


class Setting(NamedTuple):
    """A value and where it stands."""

    value: Any
    place: str


class Settings:
    """Dotted key, spelled as in release 0.2.2 where it exists there -> setting.

    Args:
        label: Name of the file.
        dialect: :data:`TOML`, :data:`SEQUENCES` (0.3.0) or :data:`TOKENS` (after 0.3.0).
        found: What the file sets.
        devices: Number of processes, if the file tells.
    """

    def __init__(
        self, label: str, dialect: str, found: Mapping[str, Setting], devices: Setting | None = None
    ) -> None:
        self.label, self.dialect, self.devices = label, dialect, devices
        self._found = dict(found)

    def __contains__(self, key: str) -> bool:
        """Whether the file sets a key."""
        return key in self._found

    @property
    def head(self) -> str:
        """Name of the module of the output projection."""
        return "output" if self.dialect == TOML else "lm_head"

    def place(self, key: str) -> str:
        """Where the value of a key stands."""
        return self._found[key].place if key in self._found else FORMAT_DEFAULT

    def wrong(self, key: str, what: str) -> InputError:
        """The error for a key."""
        return InputError(f"{self.label}: {self.place(key)}", what)

    def get(self, key: str) -> Any:
        """A value of any type.

        Raises:
            InputError: When a Python file computes it.
        """
        value = self._found[key].value if key in self._found else DEFAULTS.get(key)
        if isinstance(value, Computed):
            raise self.wrong(key, f"{value.why}; write its value as a literal")
        return value

    def typed(self, key: str, cls: type) -> Any:
        """A value of one type; TorchTitan up to 0.2.2 takes others without a word.

        Raises:
            InputError: When it is of another type.
        """
        value = self.get(key)
        if type(value) is not cls:
            raise self.wrong(key, f"expected {_KINDS[cls]}, got {str(value)!r:.60}")
        return value

    def whole(self, key: str, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            InputError: When it is another type or below ``least``.
        """
        value: int = self.typed(key, int)
        if value < least:
            raise self.wrong(key, f"must be {least} or more, got {value}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        return bool(self.typed(key, bool))

    def text(self, key: str) -> str:
        """A text."""
        return str(self.typed(key, str))

    def choice(self, key: str, *choices: str) -> str:
        """One of some texts.

        Raises:
            InputError: When it is another one.
        """
        value = self.text(key)
        if value not in choices:
            raise self.wrong(key, f"{value!r:.40} is none of {', '.join(choices)}")
        return value

    def names(self, key: str) -> list[str]:
        """A list of texts.

        Raises:
            InputError: When it is something else.
        """
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(key, f"expected a list of texts, got {str(value)!r:.60}")
        return value

    @property
    def compiles(self) -> bool:
        """The model is compiled."""
        return self.flag("compile.enable") and "model" in self.names("compile.components")
