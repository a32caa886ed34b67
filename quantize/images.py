"""Photographs as samples: reading, resizing, cropping and scaling as in training."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeport.errors import CalibrationError

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box")


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What happens to an image before the model sees it.

    Attributes:
        resize: Shorter side in pixels (keeping the aspect), or (height, width); None for the
            model's own size.
        crop: Centre crop: side or (height, width); None for the model's own size.
        interpolation: Filter for resizing: nearest, bilinear, bicubic, lanczos or box.
        scale: Factor for pixel values of 0…255.
        mean: Subtracted after scaling, per channel in the model's order or one for all.
        std: Divided by, per channel in the model's order or one for all.
        channels: Order that the model takes: `RGB` or `BGR`.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    interpolation: str = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    channels: str = "RGB"

    @classmethod
    def read(cls, path: Path) -> Preprocessing:
        """Reads a description from a TOML file with these attributes as keys.

        Raises:
            CalibrationError: The file can't be read, or holds unknown keys or wrong values.
        """
        where = str(path)
        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except OSError as e:
            raise CalibrationError(e.strerror or str(e), where=where) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise CalibrationError(f"not a TOML file ({e})", where=where) from None
        known = cls.__slots__
        for key in data:
            if key not in known:
                raise CalibrationError(
                    f"unknown key `{key}`", where=where, hint=f"keys are {', '.join(known)}"
                )
        values: dict[str, Any] = {}
        try:
            for key in ("resize", "crop"):
                if key in data:
                    values[key] = _size(key, data[key])
            for key in ("mean", "std"):
                if key in data:
                    numbers = data[key] if isinstance(data[key], list) else [data[key]]
                    values[key] = tuple(_number(key, n) for n in numbers)
                    if len(numbers) not in (1, 3):
                        raise ValueError(f"`{key}` has 1 or 3 numbers, not {len(numbers)}")
            if "scale" in data:
                values["scale"] = _number("scale", data["scale"])
            for key, allowed in (("interpolation", _INTERPOLATIONS), ("channels", ("RGB", "BGR"))):
                if key in data:
                    if data[key] not in allowed:
                        raise ValueError(f"`{key}` is one of {', '.join(allowed)}")
                    values[key] = data[key]
            if 0.0 in values.get("std", ()):
                raise ValueError("`std` must not be 0")
        except (TypeError, ValueError) as e:
            raise CalibrationError(f"wrong value: {e}", where=where) from None
        return cls(**values)


def read_image(path: Path, how: Preprocessing, shape: tuple[int, ...]) -> np.ndarray:
    """Reads one image for a model input.

    Args:
        path: The image file.
        how: What to do with it.
        shape: The input's shape, batch first: N×C×H×W or N×H×W×C with 1 or 3 channels.

    Returns:
        float32 of shape 1×C×H×W or 1×H×W×C, as `shape` is laid out; repeated to the batch size.

    Raises:
        CalibrationError: The file is no image, or its size after preprocessing is not the input's.
    """
    from PIL import Image

    channels_first = shape[1] in (1, 3)
    channels = shape[1] if channels_first else shape[3]
    height, width = shape[2:] if channels_first else shape[1:3]
    try:
        with Image.open(path) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
    except Exception as e:  # Pillow raises whatever the damage leads to
        raise CalibrationError(f"the image can't be read ({e})", where=str(path)) from None
    if channels == 1 and max(len(how.mean), len(how.std)) > 1:
        raise CalibrationError(
            "the preprocessing description has values for three channels, the model takes one",
            where=str(path),
            hint="give one number as `mean` and `std`",
        )
    target = _pair(how.crop) or (height, width)
    resampling = Image.Resampling[how.interpolation.upper()]
    if how.resize is None and how.crop is None:
        image = image.resize((width, height), resampling)
    elif how.resize is not None:
        image = image.resize(_resized(image.size, how.resize), resampling)
    if image.height < target[0] or image.width < target[1]:
        raise CalibrationError(
            f"the image has {image.height}×{image.width} pixels, too few for a crop of "
            f"{target[0]}×{target[1]}",
            where=str(path),
            hint="set `resize` in the preprocessing description",
        )
    left, top = (image.width - target[1]) // 2, (image.height - target[0]) // 2
    image = image.crop((left, top, left + target[1], top + target[0]))
    if (image.height, image.width) != (height, width):
        raise CalibrationError(
            f"the image is {image.height}×{image.width} pixels after preprocessing, the model takes "
            f"{height}×{width}",
            where=str(path),
            hint="set `crop` in the preprocessing description to the model's size",
        )
    pixels: np.ndarray = np.asarray(image, dtype=np.float32).reshape(height, width, channels)
    if how.channels == "BGR":
        pixels = pixels[:, :, ::-1]
    pixels = pixels * np.float32(how.scale)
    pixels = (pixels - np.asarray(how.mean, np.float32)) / np.asarray(how.std, np.float32)
    if channels_first:
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(np.repeat(pixels[np.newaxis], shape[0], axis=0))


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"`{key}` holds {value!r}, which is no number")
    return float(value)


def _size(key: str, value: Any) -> int | tuple[int, int]:
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, 2) or not all(type(n) is int and n > 0 for n in numbers):
        raise ValueError(f"`{key}` is one or two positive whole numbers, not {value!r}")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _pair(value: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (value, value) if isinstance(value, int) else value


def _resized(size: tuple[int, int], resize: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (width, height) as Pillow wants it."""
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    width, height = size
    if width <= height:
        return resize, max(resize, round(height * resize / width))
    return max(resize, round(width * resize / height)), resize
