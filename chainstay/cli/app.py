"""The commands under one name, and how whatever goes wrong ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import chainstay
from chainstay.cli import bench, plan, profile, report, run, verify
from chainstay.cli.endings import Ending, ending_of
from chainstay.cli.terminal import survive_any_encoding, tell
from chainstay.errors import CertificateError, ChainstayError

__all__ = ["app"]

_ENDINGS: Final = """\b
Exit status:
  0    done
  1    a check failed: wrong numbers, more memory than planned, a contradiction
  2    an option, a file or a name is wrong; nothing was done
  3    nothing fits in the budget; the least one that would do is named
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
    """Errors end with a sentence and a status, Ctrl-C with a word."""

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as it was inherited
        survive_any_encoding()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # of typer's own click, or of click's
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            tell("Interrupted.")
            raise typer.Exit(Ending.INTERRUPTED) from None
        except CertificateError as error:
            path = Path("chainstay-contradiction.json")
            path.write_text(error.report, encoding="utf-8")
            tell(f"{type(error).__name__}: {error}\nAll that is needed to report it: {path}")
            raise typer.Exit(Ending.FAILED) from None
        except ChainstayError as error:
            tell(f"{type(error).__name__}: {error}")
            raise typer.Exit(ending_of(error)) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=_ENDINGS,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:  # noqa: FBT001  # called by typer
    if value:
        sys.stdout.write(f"chainstay {chainstay.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[  # looked at by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Train neural networks inside a memory budget, provably optimally."""


for _module in (profile, plan, run, verify, bench, report):
    app.command(epilog=_module.EXAMPLES)(getattr(_module, _module.__name__.rpartition(".")[2]))
