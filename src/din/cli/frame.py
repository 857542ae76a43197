"""What all commands share: lazy groups, the options -v, -q, -o and --gateway, and how errors look.

Data goes to stdout, everything said to a person goes to stderr. An error is two lines:

    error: no gateway answered at http://127.0.0.1:8000 (Connection refused)
    hint: start one with `din up`, or name another with --gateway or DIN_GATEWAY
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final, NoReturn, TypeVar

import click

from din.access.redaction import without_secrets
from din.errors import DinError, Internal
from din.observability.printable import printable

Function = TypeVar("Function", bound=Callable[..., Any])

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
OUTPUTS: Final = ("table", "wide", "json", "name", "yaml")


class _Verbosity:
    """Of the command that runs: errors are told after click has forgotten its context."""

    level = 0


def verbosity() -> int:
    """-1 with -q, 0 normally, 1 or more with -v."""
    return _Verbosity.level


def say(text: str) -> None:
    """Something for the person, not for a pipe; nothing with -q."""
    if verbosity() >= 0:
        click.echo(printable(text), err=True)


def shout(text: str) -> None:
    """Something that must not be overlooked: red on a terminal, and said with -q too."""
    is_plain = bool(os.environ.get("NO_COLOR"))
    shown = printable(text)
    click.echo(shown if is_plain else click.style(shown, fg="red", bold=True), err=True)


def _set_verbosity(_context: click.Context, parameter: click.Parameter, value: int) -> None:
    if value:
        _Verbosity.level += -1 if parameter.name == "quiet" else value


def verbosity_options() -> list[click.Parameter]:
    """-v and -q."""
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_set_verbosity,
            help="Say more: error codes, and the story behind an error of DIN's own.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_set_verbosity,
            help="Say nothing but data and errors.",
        ),
    ]


class Command(click.Command):
    """A command with -v and -q, and with examples at the end of its help."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)
        self.params.extend(verbosity_options())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, as they can be pasted."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")


class LazyGroup(click.Group):
    """Commands by name, imported when they run; their one-line help is known before."""

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.lazy = dict(lazy or {})
        """Name -> ("module:attribute", one-line help)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are declared."""
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with suggestions from names that are not imported."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, self.list_commands(ctx), n=1)
            path = ctx.command_path
            hint = f"did you mean '{path} {close[0]}'?" if close else f"see '{path} --help'"
            raise Misused(f"no such command: '{ctx.command_path} {name}'", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        rows = [(name, text) for name, (_, text) in self.lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Misused(click.UsageError):
    """A usage error with its own hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class RootGroup(LazyGroup):
    """The whole program: turns every end into an exit code."""

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        """Run and end the process."""
        options["standalone_mode"] = False
        _Verbosity.level = 0
        _Asking.files.clear()
        try:
            code = super().main(*arguments, **options)
        except click.exceptions.Exit as end:
            code = end.exit_code
        except (KeyboardInterrupt, click.Abort):
            code = INTERRUPTED
            click.echo("interrupted", err=True)
        except click.ClickException as error:
            code = _tell_misuse(error)
        except BrokenPipeError:
            # The reader (head, less) has gone; that is no error of ours, and nothing can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = BROKEN_PIPE
        except DinError as error:
            code = tell(error)
        except Exception as error:
            # The last line of defence: it tells, with the whole story when asked, and ends.
            code = tell(_fault_of_ours(error), error)
        sys.exit(code or 0)


def _fault_of_ours(error: Exception) -> Internal:
    return Internal(
        f"din failed inside: {type(error).__name__}: {error}",
        hint="run it again with -v to see where, and report it",
    )


def _tell_misuse(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    message = error.format_message().rstrip(".")
    hint = ""
    if isinstance(error, Misused):
        hint = error.hint
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"see '{error.ctx.command_path} --help'"
        if isinstance(error, click.NoSuchOption) and isinstance(error.ctx.command, LazyGroup):
            hint = f"options stand behind the whole command; {hint}"
    _say_wrong(message, hint)
    return 2


def _say_wrong(message: str, hint: str) -> None:
    """An error may repeat what was typed, and a key or a token stands easily in a wrong place."""
    click.echo(f"error: {printable(without_secrets(message))}", err=True)
    if hint:
        click.echo(f"hint: {printable(without_secrets(hint))}", err=True)


def tell(error: DinError, cause: BaseException | None = None) -> int:
    """Print an error as people see it; its exit code comes back."""
    _say_wrong(error.message, error.hint)
    if verbosity() > 0:
        click.echo(f"code: {error.code}", err=True)
        if cause is not None:
            import traceback  # a start without faults does not pay for it

            story = "".join(traceback.format_exception(cause))
            click.echo(printable(without_secrets(story)), err=True)
    return error.exit_code


class _Asking:
    """Files that the running command shows or expects, by option."""

    files: ClassVar[dict[str, str]] = {}


def asking_files() -> tuple[str | None, str | None]:
    """What --key-file and --ca name."""
    return _Asking.files.get("key_file"), _Asking.files.get("ca_file")


def _keep_file(_context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _Asking.files[str(parameter.name)] = value


def gateway_option(function: Function) -> Function:
    """--gateway URL, given to the function as `gateway`; --key-file and --ca, for `asking`."""
    for name, words, text in (
        ("--ca", "ca_file", "Authority of an https gateway, in PEM; else DIN_CA_FILE."),
        ("--key-file", "key_file", "File with an API key; else DIN_API_KEY(_FILE)."),
    ):
        function = click.option(
            name,
            words,
            type=click.Path(),
            metavar="FILE",
            expose_value=False,
            callback=_keep_file,
            help=text,
        )(function)
    return click.option(
        "--gateway",
        metavar="URL",
        help="Gateway to ask; else DIN_GATEWAY, else that of `din up`, else port 8000 here.",
    )(function)


def output_option(function: Function) -> Function:
    """-o FORMAT, given to the function as `output`."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(OUTPUTS),
        default="table",
        show_default=True,
        help="json and yaml hold all that is known; name is one name a line.",
    )(function)


def watch_option(function: Function) -> Function:
    """--watch, given to the function as `watch`."""
    return click.option(
        "-w", "--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C."
    )(function)
