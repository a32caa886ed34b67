"""Writing an artefact's files: all of them, or none.

Files are written to a hidden folder in the output folder, or beside it where it is to be made, so
on the same file system, and moved at the end. What others keep in an existing output folder is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from edgeport.errors import OutputLocationError, from_os_error

REPORT = "report.json"
LOG = "edgeport.log"


def check_writable(folder: Path) -> None:
    """Checks that the output folder can be made and written, before any work is done.

    Raises:
        OutputLocationError: It can't.
    """
    parent = _existing_parent(folder)
    if not parent.is_dir():
        raise OutputLocationError(
            "the output is a folder, but this is a file",
            where=str(folder if parent == folder.absolute() else parent),
            hint="choose another `--output`",
        )
    _refuse_foreign(folder, (REPORT, LOG))
    try:
        with tempfile.TemporaryDirectory(prefix=".edgeport-", dir=parent):
            pass
    except OSError as e:
        raise OutputLocationError(
            f"the output folder can't be written ({e.strerror})",
            where=str(folder),
            hint="choose another place with `--output`",
        ) from None


def _existing_parent(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder, which is made if need be.

    An earlier artefact in the folder is replaced: files that its report lists and that are not
    among the new ones are removed.

    Args:
        folder: The output folder.
        files: Contents by name. `report.json` is moved last, so that a folder with a report is
            whole.

    Raises:
        OutputError: The disk is full or the folder can't be written; nothing is left behind.
        OutputLocationError: A file of somebody else's would be overwritten.
    """
    folder = folder.absolute()
    earlier = _refuse_foreign(folder, files)
    with _made_parents(folder) as parent:
        try:
            # In the folder itself, if there is one: it may be a disk of its own, such as a
            # container's volume, and its parent need not be writable.
            place = folder if folder.exists() else parent
            staging = Path(tempfile.mkdtemp(prefix=".edgeport-", dir=place))
        except OSError as e:
            raise from_os_error(e, "making the output folder") from None
        try:
            for name, content in files.items():
                _write(staging / name, content)
            if folder.exists():
                for name in sorted(files, key=lambda n: n == REPORT):
                    os.replace(staging / name, folder / name)
                for name in earlier - set(files):
                    with contextlib.suppress(OSError):
                        (folder / name).unlink()
            else:
                staging.chmod(0o777 & ~_umask())
                os.rename(staging, folder)
        except OSError as e:
            raise from_os_error(e, "writing the output") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _refuse_foreign(folder: Path, names: Iterable[str]) -> set[str]:
    """Refuses to overwrite files that no earlier artefact lists; returns those that one does."""
    earlier = _files_of_report(folder / REPORT)
    for name in names:
        if os.path.lexists(folder / name) and name not in earlier:
            raise OutputLocationError(
                "the file exists already and is not from edgeport",
                where=str(folder / name),
                hint="choose another `--output`, or remove the file",
            )
    return earlier


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # a full disk may only tell now


@contextlib.contextmanager
def _made_parents(folder: Path) -> Iterator[Path]:
    """Makes the parents of a folder, and takes them back if the block fails."""
    made = []
    parent = folder.parent
    missing = parent
    while not missing.exists():
        made.append(missing)
        missing = missing.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        yield parent
    except OSError as e:
        _remove(made)
        raise from_os_error(e, "making the output folder") from None
    except BaseException:
        _remove(made)
        raise


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _files_of_report(report: Path) -> set[str]:
    """Returns the names that an earlier artefact's report lists, and the report's own."""
    try:
        data = json.loads(report.read_text("utf-8"))
        names = {str(file["name"]) for file in data["files"]}
        if "schema_version" not in data:
            return set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    # Plain names only: a report could have been made to lead us out of the folder.
    return {n for n in names if n == os.path.basename(n) and n not in ("", ".", "..")} | {REPORT}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
