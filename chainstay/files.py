"""Files that are written whole or not at all, and read only if they are of honest size."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chainstay.errors import ChainstayError

_Read = TypeVar("_Read")


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace what is at `path`, at once: readers see the old file or the new one.

    Text is written in UTF-8.

    Raises:
        OSError: The folder does not exist or cannot be written to; nothing is left behind.
    """
    target = Path(path)
    content = content.encode() if isinstance(content, str) else content
    if target.exists() and not target.is_file():  # a pipe or a terminal is not replaced
        target.write_bytes(content)
        return
    target = target.resolve()  # not a link, but what it points to is replaced
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(_mode_of(target))
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_text(path: str | os.PathLike[str], *, most: int, error: type[ChainstayError]) -> str:
    """Return the text at `path`.

    Args:
        path: Path of a file.
        most: Largest size in bytes; a larger file is refused, and no more is ever read.
        error: Class of the error to raise.

    Raises:
        ChainstayError: `error`: there is no such file, it cannot be read, is too large, or is
            no UTF-8 text.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except OSError as cause:
        raise error(f"{path}: {cause.strerror or cause}") from cause
    if len(content) > most:
        raise error(f"{path}: larger than {most} bytes, which no such file is")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"{path}: no UTF-8 text ({cause.reason} at byte {cause.start})") from cause


def read_document(
    path: str | os.PathLike[str],
    parse: Callable[[str], _Read],
    *,
    most: int,
    error: type[ChainstayError],
) -> _Read:
    """Return what `parse` makes of the text at `path`; its errors name the file.

    Args:
        path: Path of a file.
        parse: Function that reads the text.
        most: Largest size in bytes, as for `read_text`.
        error: Class of the error to raise where the file cannot be read.
    """
    text = read_text(path, most=most, error=error)
    try:
        return parse(text)
    except ChainstayError as malformed:
        malformed.args = (f"{path}: {malformed}", *malformed.args[1:])
        raise


def _mode_of(path: Path) -> int:
    """Return the permissions of the file that is there, or those of any new file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
