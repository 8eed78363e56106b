"""Files that commands write: where they go, and errors for people."""

from __future__ import annotations

from pathlib import Path

from chainstay.cli.exit_codes import CommandLineError
from chainstay.files import write_file


def output_path(output: Path | None, default: str, *, as_json: bool, source: str) -> Path | None:
    """Return the file to write; `default` only if nothing else is printed.

    Raises:
        CommandLineError: There is no such folder, or the file is a folder or `source`: a file, or
            a function of one, as in ``models.py:net?depth=3``.
    """
    target = output or (None if as_json else Path(default))
    if target is not None and not target.absolute().parent.is_dir():
        raise CommandLineError(
            f"there is no folder {target.absolute().parent} for {target.name}; make it, or choose "
            "another --output"
        )
    if target is not None and target.is_dir():
        raise CommandLineError(f"--output {target} is a folder, must be a file")
    read = source, source.partition("?")[0].rpartition(":")[0]
    if target and target.resolve() in [Path(name).expanduser().resolve() for name in read]:
        raise CommandLineError(
            f"{target} is the file that is read; choose another name for the output"
        )
    return target


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all; text in UTF-8.

    Raises:
        CommandLineError: It cannot be written.
    """
    try:
        write_file(path, content)
    except OSError as cause:
        raise CommandLineError(
            f"{path} cannot be written: {cause.strerror}; choose another --output"
        ) from cause
