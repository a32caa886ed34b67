"""Calibration and evaluation samples, from folders, files and iterables.

A sample is one set of inputs in the original model's layout: {input name: array}. Batches larger
than the model's are cut into pieces of its batch size; what is left over is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeport.errors import CalibrationError
from edgeport.quantize.images import IMAGE_ENDINGS, Preprocessing, read_image

Sample = dict[str, np.ndarray]
DESCRIPTION = "preprocessing.toml"
_ARRAY_ENDINGS = (".npy", ".npz")


@dataclass(frozen=True, slots=True)
class Expected:
    """An input that samples must fit.

    Attributes:
        name: Its name.
        shape: Its shape in the original model.
        is_float: Whether it takes floating-point values.
    """

    name: str
    shape: tuple[int, ...]
    is_float: bool


class Samples:
    """Samples that can be read once or many times.

    Args:
        source: A folder of images or of .npy/.npz files, one such file, a list of such files, or
            any iterable of inputs: arrays or tensors (one input), tuples (inputs in order, labels
            behind them are dropped), dicts by name.
        expected: The model's inputs, in order.
        preprocessing: A description of what to do with images, or None to look for
            `preprocessing.toml` in the folder.

    Raises:
        CalibrationError: Nothing there can be a sample.
    """

    def __init__(
        self,
        source: Any,
        expected: Sequence[Expected],
        preprocessing: Path | None = None,
    ) -> None:
        self._expected = expected
        self.warnings: list[str] = []
        self._files: list[Path] | None = None
        self._items: Iterable[Any] = ()
        self._preprocessing: Preprocessing | None = None
        if isinstance(source, str | Path):
            folder = Path(source)
            self._files = find_files(folder)
            folder = folder if folder.is_dir() else folder.parent
        elif isinstance(source, list | tuple) and source and _all_paths(source):
            self._files = [Path(p) for p in source]
            folder = self._files[0].parent
        elif isinstance(source, Iterable) and not isinstance(source, Mapping):
            self._items = source
        else:
            raise CalibrationError(
                f"samples are a folder, files or an iterable of inputs, not {type(source).__name__}"
            )
        if self._files and any(f.suffix.lower() in IMAGE_ENDINGS for f in self._files):
            self._prepare_images(folder, preprocessing)
        elif preprocessing is not None and self._files is None:
            self.warnings.append("the preprocessing description is for images; it was not used")

    @property
    def repeatable(self) -> bool:
        """Whether a second reading gives the same samples; False for a generator."""
        return self._files is not None or not isinstance(self._items, Iterator)

    def __iter__(self) -> Iterator[Sample]:
        """Yields samples in a fixed order.

        Raises:
            CalibrationError: One does not fit the model; the message names it.
        """
        if self._files is None:
            for number, item in enumerate(self._items):
                yield from self._split(self._by_name(item, f"sample {number}"), f"sample {number}")
            return
        for file in self._files:
            yield from self._split(self._read(file), str(file))

    def _prepare_images(self, folder: Path, preprocessing: Path | None) -> None:
        images = [e for e in self._expected if e.is_float and len(e.shape) == 4]
        if len(self._expected) != 1 or not images:
            raise CalibrationError(
                "images can only be samples of a model with one float input of rank 4",
                where=str(folder),
                hint="give .npz files with an array for each input",
            )
        shape = images[0].shape
        if shape[1] not in (1, 3) and shape[3] not in (1, 3):
            raise CalibrationError(
                f"the input `{images[0].name}` of shape {shape} takes no images of 1 or 3 channels",
                where=str(folder),
                hint="give .npy files of that shape",
            )
        described = preprocessing or folder / DESCRIPTION
        if preprocessing is not None or described.is_file():
            self._preprocessing = Preprocessing.read(described)
        else:
            self._preprocessing = Preprocessing()
            self.warnings.append(
                f"{folder} has no preprocessing.toml: pixels were only resized and scaled to 0…1, "
                "which is a guess"
            )

    def _read(self, file: Path) -> Sample:
        where = str(file)
        ending = file.suffix.lower()
        try:
            if ending in IMAGE_ENDINGS:
                assert self._preprocessing is not None
                only = self._expected[0]
                return {only.name: read_image(file, self._preprocessing, only.shape)}
            if ending not in _ARRAY_ENDINGS:
                raise CalibrationError("not an image, .npy or .npz file", where=where)
            with file.open("rb") as stream:
                loaded = np.load(stream, allow_pickle=False)
                if isinstance(loaded, np.ndarray):
                    return self._by_name(loaded, where)
                with loaded:
                    return self._by_name({name: loaded[name] for name in loaded.files}, where)
        except CalibrationError:
            raise
        except Exception as e:  # numpy and zipfile raise whatever the damage leads to
            raise CalibrationError(f"the file can't be read ({e})", where=where) from None

    def _by_name(self, item: Any, where: str) -> Sample:
        """Gives the inputs of one item their names."""
        names = [e.name for e in self._expected]
        if isinstance(item, Mapping):
            if set(names) <= set(item):
                return {name: _array(item[name], name, where) for name in names}
            plain = [f"arr_{i}" for i in range(len(names))]  # np.savez without names
            if set(plain) <= set(item):
                pairs = zip(names, plain, strict=True)
                return {name: _array(item[key], name, where) for name, key in pairs}
            missing = next(name for name in names if name not in item)
            raise CalibrationError(
                f"the input `{missing}` is missing; there are: {', '.join(map(str, item))}",
                where=where,
                hint=f"name the arrays {', '.join(names)}",
            )
        values = list(item) if isinstance(item, list | tuple) else [item]
        if len(values) < len(names):
            raise CalibrationError(
                f"the model has {len(names)} inputs ({', '.join(names)}), the sample {len(values)}",
                where=where,
            )
        if len(values) > len(names) + 1:
            raise CalibrationError(
                f"the sample has {len(values)} values, the model {len(names)} inputs "
                f"({', '.join(names)})",
                where=where,
                hint="one label may follow the inputs; drop the rest, or give dicts by name",
            )
        pairs = zip(names, values, strict=False)  # a label may follow
        return {name: _array(value, name, where) for name, value in pairs}

    def _split(self, sample: Sample, where: str) -> Iterator[Sample]:
        """Checks shapes and values, and cuts batches to the model's batch size."""
        pieces: int | None = None
        for expected in self._expected:
            array = sample[expected.name]
            shape = expected.shape
            if array.shape == shape[1:] and shape[:1] == (1,):
                array = array[np.newaxis]
            if (
                array.ndim != len(shape)
                or array.shape[1:] != shape[1:]
                or (shape and (array.shape[0] < shape[0]))
            ):
                raise CalibrationError(
                    f"the input `{expected.name}` has shape {_shape(array.shape)}, the model takes "
                    f"{_shape(shape)}",
                    where=where,
                )
            if expected.is_float and not np.issubdtype(array.dtype, np.floating):
                raise CalibrationError(
                    f"the input `{expected.name}` is {array.dtype}, the model takes floats",
                    where=where,
                    hint="scale it as in training, and save it as float32",
                )
            if not expected.is_float and array.dtype.kind not in "iub":
                raise CalibrationError(
                    f"the input `{expected.name}` is {array.dtype}, the model takes integers",
                    where=where,
                )
            if np.issubdtype(array.dtype, np.floating):
                bad = int(array.size - np.isfinite(array).sum())
                if bad:
                    raise CalibrationError(
                        f"the input `{expected.name}` holds {bad} NaN or infinite values",
                        where=where,
                        hint="remove the sample or mend it",
                    )
            sample[expected.name] = array
            here = array.shape[0] // shape[0] if shape and shape[0] else 1
            if pieces is not None and here != pieces:
                raise CalibrationError(
                    f"the input `{expected.name}` holds {here} samples, the inputs before it "
                    f"{pieces}",
                    where=where,
                    hint="give every input as often as the others",
                )
            pieces = here
        for piece in range(pieces or 1):
            yield {
                e.name: sample[e.name][piece * e.shape[0] : (piece + 1) * e.shape[0]]
                if e.shape
                else sample[e.name]
                for e in self._expected
            }


def _all_paths(values: Sequence[Any]) -> bool:
    return all(isinstance(v, str | Path) for v in values)


def _array(value: Any, name: str, where: str) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        value = value.numpy()
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise CalibrationError(f"the input `{name}` is no array ({e})", where=where) from None
    if array.dtype == object or array.dtype.kind in "US":
        raise CalibrationError(f"the input `{name}` is no array of numbers", where=where)
    return array


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def find_files(path: Path) -> list[Path]:
    """Lists the files that can be samples: the file itself, or all in a folder, by name.

    Hidden files, such as macOS puts beside others in archives, are none.

    Raises:
        CalibrationError: The path does not exist or holds nothing that can be a sample.
    """
    if not path.exists():
        raise CalibrationError("no such file or folder", where=str(path))
    if not path.is_dir():
        return [path]
    usable = (*IMAGE_ENDINGS, *_ARRAY_ENDINGS)
    try:
        files = sorted(
            (
                f
                for f in path.rglob("*")
                if f.suffix.lower() in usable and not f.name.startswith(".") and f.is_file()
            ),
            key=lambda f: f.relative_to(path).as_posix(),
        )
    except OSError as e:
        raise CalibrationError(e.strerror or str(e), where=str(path)) from None
    if not files:
        raise CalibrationError(
            "the folder holds no samples",
            where=str(path),
            hint=f"put images ({', '.join(IMAGE_ENDINGS)}) or .npy/.npz files into it",
        )
    return files


def check_source(source: Any) -> None:
    """Checks what can be known about samples on disk before a model is loaded.

    Raises:
        CalibrationError: A path does not exist or holds nothing that can be a sample.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        find_files(path)
        if (path / DESCRIPTION).is_file():
            Preprocessing.read(path / DESCRIPTION)
