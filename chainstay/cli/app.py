"""The commands in one group, with exit codes and messages for errors."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import chainstay
from chainstay.cli.commands import bench, plan, profile, report, run, verify
from chainstay.cli.exit_codes import ExitCode, exit_code_for
from chainstay.cli.terminal import print_note, use_nearest_characters
from chainstay.errors import CertificateError, ChainstayError

_EPILOG: Final = """\b
Exit codes:
  0    done
  1    a check failed: wrong numbers, more memory than planned, a contradiction
  2    an option, a file or a name is wrong; nothing was done
  3    nothing fits in the budget; the least budget that would do is named
  4    the model cannot be built, cut into stages or run
  5    the plan is for another model, input or machine
  6    a solver is missing, or ran out of time with nothing to show
  130  interrupted by Ctrl-C; no file is half written
\b
Five minutes to a first plan:
  chainstay plan torchvision:resnet50 --input 8x3x64x64 --budget 50%
  chainstay run torchvision:resnet50 --input 8x3x64x64 --plan plan.json
  chainstay report plan.json -o plan.html
Your own model: a file with a function that returns it, as path/to/file.py:function.
"""


class _Commands(TyperGroup):
    """A group whose errors end with a sentence and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        use_nearest_characters()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print_note("Interrupted.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except (ChainstayError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # nobody reads on, which click knows
            note = f"{type(error).__name__}: {error}"
            if isinstance(error, CertificateError):
                path = Path("chainstay-contradiction.json")
                path.write_text(error.report, encoding="utf-8")
                note += f"\nThe file to report it with: {path}"
            print_note(note)
            raise typer.Exit(exit_code_for(error)) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:  # noqa: FBT001  # called by typer
    if value:
        sys.stdout.write(f"chainstay {chainstay.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[  # used by its callback
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train neural networks inside a memory budget, provably optimally."""


for _module in (profile, plan, run, verify, bench, report):
    app.command(epilog=_module.EXAMPLES)(getattr(_module, _module.__name__.rpartition(".")[2]))
