"""From a launch script or an argument file to settings and the number of devices."""

from __future__ import annotations

import re
import shlex

from attrs import frozen

from autopar_core.api import InputError, counted
from autopar_megatron.refusals import refuse_other_programs
from autopar_megatron.settings import Setting, Settings, from_tokens, keep
from autopar_megatron.shell_run import Ran, Shell
from autopar_megatron.shell_syntax import MAX_CHARACTERS, parse
from autopar_megatron.shell_tree import Script
from autopar_megatron.shell_values import Token, holes_of, scalar, text_of


# Flags of which a Megatron launch has several; one of them alone may be another program's.
SIGNATURE = frozenset({
    "--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size",
    "--global-batch-size", "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
    "--max-position-embeddings",
})  # fmt: skip
_SILENT = frozenset({"echo", "printf", "cat", "tee", "grep", "sed", "export", "declare", "local"})
_MINDSPEED = frozenset({
    "num_layer_list", "noop_layers", "pipeline_num_transformer_layers", "context_parallel_algo",
    "padded_vocab_size", "ulysses_degree_in_cp", "cp_window_size", "post_norm", "use_fused_rmsnorm",
    "use_fused_swiglu", "schedules_method", "swap_attention", "recompute_activation_function",
    "enable_recompute_layers_per_pp_rank",
})  # fmt: skip
_SBATCH = re.compile(r"#SBATCH\s+(--?[\w-]+)[=\s]*(\S*)")


@frozen
class Launch:
    """What a script launches.

    Attributes:
        settings: The arguments of the program.
        devices: Number of ranks and where it stands; 0 when the file does not say.
        devices_place: Place for messages.
        notes: What was not followed.
    """

    settings: Settings
    devices: int
    devices_place: str
    notes: tuple[str, ...]


def looks_like_arguments(text: str) -> bool:
    """Whether a text is an argument list alone, not a script around one."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return line.lstrip().startswith("--")
    return False


def has_signature(text: str) -> bool:
    """Whether at least three of Megatron's own flags occur."""
    return sum(flag in text for flag in SIGNATURE) >= 3


def read_arguments(label: str, text: str) -> Launch:
    """An argument file: words, quotes and comment lines.

    Raises:
        InputError: When a quote is not closed, or the text is too large to be one.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(label, f"is larger than {MAX_CHARACTERS >> 20} MiB; no argument file is")
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removesuffix("\\")
        if line.startswith("#"):
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            raise InputError(f"{label}: line {number}", "a quote is not closed") from None
        for word in words:
            holes = tuple(re.findall(r"\$\w+|\$\{\w+\}", word))
            tokens.append(Token("" if holes else word, number, holes, number))
    found = from_tokens(label, tokens)
    return Launch(Settings(label, found, family=_family(found, text)), 0, "", ())


def read_script(label: str, text: str) -> Launch:
    """A bash script.

    Raises:
        InputError: When it launches nothing of Megatron, or several different things.
    """
    script = parse(text, label)
    shell = Shell(script, label)
    launches = [(ran, words) for ran in shell.commands if _is_launch(words := _words(ran))]
    if not launches:
        raise InputError(label, "no command of this script passes Megatron's flags to a program")
    chosen = _only_one(label, launches)
    _no_lost_flags(label, shell, chosen[0])
    ran, words = chosen
    launcher, program, arguments = _cut(words)
    refuse_other_programs(f"{label}: line {program.line}", program.text)
    found = from_tokens(label, arguments)
    settings = Settings(label, found, family=_family(found, text))
    devices, place, notes = _devices(label, launcher, ran, script)
    lost = [
        f"line {t.line}: {t.holes[0]} has no value here and is taken to be empty"
        for t in arguments
        if t.holes and not t.text and t.holes[0].startswith("$") and _stands_alone(t, found)
    ]
    return Launch(settings, devices, place, (*shell.notes, *notes, *lost))


def _stands_alone(token: Token, found: dict[str, Setting]) -> bool:
    """Whether a hole is no flag's value, but may hold flags of its own."""
    return not any(token.holes[0] in s.holes and not s.values for s in found.values())


def _words(ran: Ran) -> tuple[Token, ...]:
    """Words of a command; ``eval`` and ``bash -c`` split what they get."""
    made: list[Token] = []
    for token in ran.words:
        if any(c.isspace() for c in token.text) and sum(f in token.text for f in SIGNATURE) >= 2:
            made += [Token(w, token.line, token.holes, token.last_line) for w in token.text.split()]
        else:
            made.append(token)
    return tuple(made)


def _is_launch(words: tuple[Token, ...]) -> bool:
    if not words or words[0].text in _SILENT or words[0].text.startswith("--"):
        return False
    said = {token.text.partition("=")[0] for token in words}
    return len(said & SIGNATURE) >= 3


def _only_one(
    label: str, launches: list[tuple[Ran, tuple[Token, ...]]]
) -> tuple[Ran, tuple[Token, ...]]:
    first = launches[0]
    for other in launches[1:]:
        if [t.text for t in other[1]] != [t.text for t in first[1]]:
            raise InputError(
                label, f"launches two different jobs, on lines {first[0].line} and {other[0].line}; "
                "keep the one that is meant",
            )  # fmt: skip
    return first


def _no_lost_flags(label: str, shell: Shell, launch: Ran) -> None:
    for ran in shell.commands:
        if ran.line > launch.line and ran.words[0].text.startswith("--"):
            raise InputError(
                f"{label}: line {ran.line}", f"{ran.words[0].text} is not passed: the command of line "
                f"{launch.line} ended before it; a comment or a line without '\\' ends a command",
            )  # fmt: skip


def _cut(
    words: tuple[Token, ...],
) -> tuple[tuple[Token, ...], Token, tuple[Token, ...]]:
    """Words before the program, the program (``pretrain_gpt.py``), and its arguments."""
    for place, token in enumerate(words):
        if token.text.endswith(".py"):
            return words[:place], token, words[place + 1 :]
    for place, token in enumerate(words):
        if token.text.partition("=")[0] in SIGNATURE:
            return words[:place], words[0], words[place:]
    return words, words[0], ()


def _family(found: dict[str, Setting], text: str) -> str:
    if _MINDSPEED & found.keys() or re.search(r"mindspeed|NPUS_PER_NODE|ASCEND_|HCCL_", text):
        return "mindspeed"
    return "megatron"


# --- devices -----------------------------------------------------------------------------------
def _devices(
    label: str, launcher: tuple[Token, ...], ran: Ran, script: Script
) -> tuple[int, str, list[str]]:
    found: dict[str, Setting] = {}
    for name, setting in from_tokens(label, launcher).items():
        keep(label, found, _renamed(setting, name.replace("-", "_")))
    given = Settings(label, found)
    each, each_place = _count(given, ("nproc_per_node", "num_gpus", "ntasks_per_node"))
    nodes, nodes_place = _count(given, ("nnodes", "num_nodes", "nodes"))
    batch = _sbatch(script)
    if not each and not given.first("nproc_per_node"):
        each, each_place = _from_batch(batch, ("--ntasks-per-node", "--gpus-per-node", "--gres"))
    if not nodes and not given.first("nnodes"):
        nodes, nodes_place = _from_batch(batch, ("--nodes", "-N"))
    if each and not nodes and given.first("standalone"):
        nodes, nodes_place = 1, given.place("standalone")
    if not each or not nodes:
        return 0, "", ["the file does not say how many devices it runs on; give cluster.devices"]
    devices, place = each * nodes, f"{each_place} x {nodes_place}"
    notes = _world_size(label, ran, devices, nodes, place)
    return devices, place, notes


def _renamed(setting: Setting, name: str) -> Setting:
    return Setting(name, setting.spelled, setting.values, setting.line, setting.value_line,
                   setting.holes)  # fmt: skip


def _count(given: Settings, names: tuple[str, ...]) -> tuple[int, str]:
    name = given.first(*names)
    if not name or given.found[name].holes:
        return 0, ""
    text = given.text(name)
    return (int(text), given.place(name)) if text.isdigit() and len(text) < 8 else (0, "")


def _sbatch(script: Script) -> dict[str, tuple[str, int]]:
    found = {}
    for line, text in script.comments:
        match = _SBATCH.match(text)
        if match:
            found[match[1]] = (match[2], line)
    return found


def _from_batch(batch: dict[str, tuple[str, int]], names: tuple[str, ...]) -> tuple[int, str]:
    for name in names:
        if name in batch:
            value, line = batch[name]
            number = value.rsplit(":", 1)[-1]
            if number.isdigit():
                return int(number), f"line {line}, #SBATCH {name}"
    return 0, ""


def _world_size(label: str, ran: Ran, devices: int, nodes: int, place: str) -> list[str]:
    """A WORLD_SIZE that the script sets must agree; some platforms mean nodes by it."""
    value = scalar(ran.variables.get("WORLD_SIZE"))
    if value is None or holes_of(value) or not text_of(value).isdigit():
        return []
    said = int(text_of(value))
    if said == devices:
        return []
    if said == nodes:
        return [
            f"WORLD_SIZE = {said} means nodes here, not ranks: {counted(devices, 'device')} in all"
        ]
    raise InputError(
        label, f"WORLD_SIZE is {said} (line {value[0].line}) and the launcher starts "
        f"{counted(devices, 'rank')} "
        f"({place}); only one of them can hold",
    )  # fmt: skip
