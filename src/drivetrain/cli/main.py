"""`drivetrain`: finds the verb, imports its module only then, and turns errors into exit codes.

`drivetrain --help` answers before torch, pydantic or yaml could even be imported, so keep this file's imports
to click and the standard library.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence

import click

from drivetrain._version import __version__
from drivetrain.cli.streams import flush_or_discard, open_missing, say
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal

# Verb → the module that holds its `command`, and its line in the help.
VERBS: dict[str, tuple[str, str]] = {
    "train": (
        "drivetrain.cli.train",
        "Train a model from a run file or a task, on all GPUs or a few processes.",
    ),
    "launch": ("drivetrain.cli.launch", "Run your own script on every rank, as torchrun would."),
    "topo": ("drivetrain.cli.topo", "Show how the GPUs are wired, and which of them to take."),
    "gpus": ("drivetrain.cli.gpus", "Who uses which GPU of this machine; lease some for a command."),
    "doctor": ("drivetrain.cli.doctor", "Check this machine before a run, with the repair of what is wrong."),
    "diagnose": ("drivetrain.cli.diagnose", "Say why a job failed: from logs of any launcher, or a run."),
    "data": ("drivetrain.cli.data", "Prepare data: text files into a token file."),
    "parity": ("drivetrain.cli.parity", "Compare strategies with one process, step by step."),
    "export": ("drivetrain.cli.export", "Write a run's weights as safetensors."),
}

_EPILOG = "First steps: drivetrain train digits. More of a verb: drivetrain VERB --help."


class _VerbGroup(click.Group):
    """A group whose verbs are imported when they are run, not when they are listed."""

    # ARG002: click gives each of these the context; what we list does not depend on it.
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.4)
            hint = f"did you mean `drivetrain {close[0]}`?" if close else f"the verbs are {', '.join(VERBS)}"
            raise click.UsageError(f"there is no verb {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_VerbGroup,
    subcommand_metavar="VERB [ARGUMENTS]...",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="drivetrain %(version)s")
def group() -> None:
    """Takes a PyTorch model from one GPU to many, and says why when it is not as fast as it should be."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs the verb in `args` (the process's arguments by default) and returns its exit code.

    A verb returns its exit code, or None for 0. A user's mistake ends on stderr, with exit code 2 and no
    traceback; a traceback therefore always means a fault of drivetrain's own. Output that cannot be written
    changes no exit code.
    """
    open_missing()
    try:
        return _run(args)
    finally:
        flush_or_discard()


def _run(args: Sequence[str] | None) -> int:
    try:
        code = group.main(
            args=None if args is None else list(args), prog_name="drivetrain", standalone_mode=False
        )
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return ExitCode.USAGE
    except ExplainedError as error:
        say(f"drivetrain: {error}")
        return ExitCode.USAGE if isinstance(error, InputError) else ExitCode.FAILED
    except (OSError, ImportError, MemoryError) as error:
        from drivetrain.cli.surroundings import explain

        explained = explain(error)
        if explained is None:
            raise
        say(f"drivetrain: {explained}")
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        say("drivetrain: interrupted")
        return exit_code_for_signal(2)
    return int(code or 0)
