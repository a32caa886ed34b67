"""The sample's photographs: reproducible, and never the same picture on both sides."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[1] / "samples" / "efficientnet_lite0.py"


@pytest.fixture(scope="module")
def sample() -> ModuleType:
    """The sample's script, imported by its path: it is no part of a package."""
    for package in ("efficientnet_lite_pytorch", "skimage", "sklearn"):
        pytest.importorskip(package, reason=f"the `samples` extra is missing ({package})")
    spec = importlib.util.spec_from_file_location("edgeport_sample_efficientnet_lite0", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folders(sample: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both folders, as the sample writes them."""
    top = tmp_path_factory.mktemp("sample")
    sample.write_crops(sample.CALIBRATION, top / "calibration")
    sample.write_crops(sample.EVALUATION, top / "evaluation")
    return {"calibration": top / "calibration", "evaluation": top / "evaluation"}


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_each_folder_holds_the_promised_number_of_crops(folders: dict[str, Path]) -> None:
    counts = {name: len(list(folder.glob("*.png"))) for name, folder in folders.items()}
    assert counts == {"calibration": 48, "evaluation": 40}


def test_crops_are_the_same_every_time(
    sample: ModuleType, folders: dict[str, Path], tmp_path: Path
) -> None:
    sample.write_crops(sample.CALIBRATION, tmp_path)
    assert _digests(tmp_path) == _digests(folders["calibration"])


def test_no_two_crops_are_the_same(folders: dict[str, Path]) -> None:
    digests = [
        digest
        for folder in folders.values()
        for name, digest in _digests(folder).items()
        if name.endswith(".png")
    ]
    assert len(set(digests)) == len(digests)


def test_no_picture_serves_both_calibration_and_evaluation(sample: ModuleType) -> None:
    def contents(pictures: tuple[object, ...]) -> set[str]:
        return {
            hashlib.sha256((files(p.package) / p.path).read_bytes()).hexdigest()  # type: ignore[attr-defined]
            for p in pictures
        }

    calibration = contents(sample.CALIBRATION.pictures)
    evaluation = contents(sample.EVALUATION.pictures)
    assert len(calibration) == len(evaluation) == 4
    assert not calibration & evaluation


def test_crops_are_square_and_no_smaller_than_half_the_picture(folders: dict[str, Path]) -> None:
    for path in itertools.chain.from_iterable(f.glob("*.png") for f in folders.values()):
        with Image.open(path) as image:
            assert image.mode == "RGB"
            assert image.width == image.height
            assert image.width >= 150


@pytest.mark.parametrize("name", ["calibration", "evaluation"])
def test_preprocessing_maps_pixels_as_the_authors_of_the_model_do(
    folders: dict[str, Path], name: str
) -> None:
    settings = tomllib.loads((folders[name] / "preprocessing.toml").read_text("utf-8"))
    for mean, std in zip(settings["mean"], settings["std"], strict=True):
        assert (0 * settings["scale"] - mean) / std == -127 / 128
        assert (255 * settings["scale"] - mean) / std == 1.0
    assert settings["crop"] / settings["resize"] == 0.875
    assert settings["interpolation"] == "bicubic"


@pytest.mark.parametrize(("width", "height"), [(640, 427), (300, 451), (512, 512), (7, 5)])
def test_crop_boxes_stay_inside_the_picture_and_reach_its_edges(
    sample: ModuleType, width: int, height: int
) -> None:
    boxes = list(sample.crop_boxes(width, height, ((0.6, 3, 2),)))
    assert len(boxes) == 6
    assert min(box[0] for box in boxes) == min(box[1] for box in boxes) == 0
    assert max(box[2] for box in boxes) == width
    assert max(box[3] for box in boxes) == height


def test_a_single_crop_lies_in_the_middle(sample: ModuleType) -> None:
    assert list(sample.crop_boxes(100, 60, ((0.5, 1, 1),))) == [(35, 15, 65, 45)]
