"""The command ``autopar``: finds the sub-command, and turns every error into one sentence."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

import autopar_core
from autopar_core.errors import AutoparError


WRONG_INPUT, OWN_FAULT, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141

# Name -> (module, attribute, help). The help stands here so that --help imports no command.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "search": ("search", "search", "Find the best strategies for a model, cluster and space."),
    "estimate": ("estimate", "estimate", "Memory and step time of one strategy."),
    "explain": ("explain", "explain", "Why a strategy is not the winner of a run."),
    "diff": ("diff", "diff", "What differs between two runs."),
    "timeline": ("timeline", "timeline", "One step of a strategy of a run, over time."),
    "report": ("report", "report", "Print the answer of a run."),
    "export": ("export", "export", "Files that launch a strategy of a run in its framework."),
    "validate": ("validate", "validate", "Predictions against measured runs, errors by source."),
    "calibrate": ("calibrate", "calibrate", "A profile fitted to your own runs."),
    "model": ("model", "model", "A model's exact parameter count and fields."),
    "plugins": ("listings", "plugins", "Installed plugins and why some are not active."),
    "systems": ("listings", "systems", "Known systems."),
    "frameworks": ("listings", "frameworks", "Known framework profiles."),
}


class _LazyGroup(click.Group):
    """Imports a command when it is called; numpy and rich take longer than most answers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found = getattr(import_module(f"autopar_core.cli.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 something is feasible, 1 nothing fits, 2 the input is wrong.",
)
@click.version_option(autopar_core.__version__, prog_name="autopar")
def autopar() -> None:
    """Which parallel strategy should a dense LLM be trained with? Answered without a GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit code: 0 feasible, 1 nothing fits, 2 wrong input, 3 a fault of autopar.
    """
    # Large searches run in processes of their own; BLAS threads over small matrices only compete.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = autopar.main(
            args=None if arguments is None else list(arguments),
            prog_name="autopar",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_INPUT
    except click.ClickException as error:
        return _say(_usage(error))
    except AutoparError as error:
        return _say(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader left early (head); the interpreter must not flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _own_fault(error)


def _say(sentence: str) -> int:
    if os.environ.get("AUTOPAR_DEBUG") == "1":
        traceback.print_exc()
    click.echo(f"error: {sentence}", err=True)
    return WRONG_INPUT


def _usage(error: click.ClickException) -> str:
    """Click's message, with the way to the command's options."""
    text = error.format_message().rstrip(".").replace("\n", " ")
    context = getattr(error, "ctx", None)
    return f"{text}; see {context.command_path} --help" if context is not None else text


def _own_fault(error: Exception) -> int:
    if os.environ.get("AUTOPAR_DEBUG") == "1":
        traceback.print_exc()
    else:
        click.echo(
            f"error: autopar itself failed ({type(error).__name__}: {error}); please report it "
            "with the output of the same command under AUTOPAR_DEBUG=1",
            err=True,
        )
    return OWN_FAULT
