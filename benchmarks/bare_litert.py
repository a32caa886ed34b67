"""The same job as `edgeport convert` with the two libraries alone, as their own guides show it.

litert-torch converts the exported program, ai-edge-quantizer calibrates it and makes it int8. It
imports nothing of edgeport, so that its time and memory are those of the libraries.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_SIGNATURE = "serving_default"


def read_images(folder: Path) -> Iterator[npt.NDArray[np.float32]]:
    """Yields the folder's images as float32 [1, height, width, 3], preprocessed as it asks."""
    from PIL import Image

    settings = tomllib.loads((folder / "preprocessing.toml").read_text("utf-8"))
    size, crop = settings["resize"], settings["crop"]
    mean = np.float32(settings["mean"])
    std = np.float32(settings["std"])
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        ratio = size / min(image.size)
        image = image.resize(
            (round(image.width * ratio), round(image.height * ratio)),
            Image.Resampling[settings["interpolation"].upper()],
        )
        left, top = (image.width - crop) // 2, (image.height - crop) // 2
        image = image.crop((left, top, left + crop, top + crop))
        pixels = np.asarray(image, dtype=np.float32) * np.float32(settings["scale"])
        yield ((pixels - mean) / std)[np.newaxis]


def convert(model: Path, output: Path) -> None:
    """Writes the float model with channels last at its input, as accelerators want it."""
    import litert_torch
    import torch

    program = torch.export.load(model)
    (image,), _ = program.example_inputs
    module = litert_torch.to_channel_last_io(program.module(), args=[0])
    litert_torch.convert(module, (image.permute(0, 2, 3, 1).contiguous(),)).export(str(output))


def quantize(model: Path, calibration: Path, output: Path) -> None:
    """Writes the int8 model, with ranges from ai-edge-quantizer's own calibration."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    (name,) = Interpreter(str(model)).get_signature_runner(_SIGNATURE).get_input_details()
    samples: list[dict[str, Any]] = [{name: image} for image in read_images(calibration)]
    work = quantizer.Quantizer(str(model), recipe.static_wi8_ai8())
    result = work.quantize(work.calibrate({_SIGNATURE: samples}))
    output.write_bytes(result.quantized_model)


def main() -> None:
    """Converts and quantizes one model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--output", "-o", type=Path, required=True, help="folder to write into")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    float_model = arguments.output / "float32.tflite"
    convert(arguments.model, float_model)
    quantize(float_model, arguments.calibration, arguments.output / "int8.tflite")


if __name__ == "__main__":
    main()
