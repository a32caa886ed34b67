"""Images reach the model as Pillow and numpy would prepare them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeport.errors import CalibrationError
from edgeport.quantize.images import Preprocessing, read_image

SIZE = (20, 30)  # height, width


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    path = tmp_path_factory.mktemp("images") / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def described(tmp_path: Path, text: str) -> Preprocessing:
    path = tmp_path / "preprocessing.toml"
    path.write_text(text, "utf-8")
    return Preprocessing.read(path)


def test_pixels_are_resized_cropped_and_scaled_as_in_training(photo: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    how = Preprocessing(resize=16, crop=12, interpolation="bicubic", mean=mean, std=std)
    found = read_image(photo, how, (1, 3, 12, 12))
    with Image.open(photo) as image:
        by_hand = image.resize((24, 16), Image.Resampling.BICUBIC).crop((6, 2, 18, 14))
    expected = (np.asarray(by_hand, np.float64) / 255 - mean) / std
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)
    last = read_image(photo, how, (1, 12, 12, 3))
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), found)


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos", "box"])
def test_every_filter_is_pillows(photo: Path, name: str) -> None:
    found = read_image(photo, Preprocessing(interpolation=name, scale=1), (1, 9, 11, 3))
    with Image.open(photo) as image:
        expected = np.asarray(image.resize((11, 9), Image.Resampling[name.upper()]))
    np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize(
    ("how", "shape"),
    [
        (Preprocessing(), (1, 3, 5, 7)),
        (Preprocessing(resize=(5, 7)), (1, 3, 5, 7)),
        (Preprocessing(resize=10, crop=(8, 9)), (1, 3, 8, 9)),
        (Preprocessing(resize=10), (1, 3, 10, 10)),
        (Preprocessing(crop=20), (1, 3, 20, 20)),
        (Preprocessing(resize=(20, 30), crop=(20, 30)), (2, 3, 20, 30)),
    ],
)
def test_sizes_come_out_as_the_model_takes_them(
    photo: Path, how: Preprocessing, shape: tuple[int, ...]
) -> None:
    assert read_image(photo, how, shape).shape == shape


def test_a_batch_is_the_image_repeated(photo: Path) -> None:
    found = read_image(photo, Preprocessing(), (3, 3, 5, 5))
    np.testing.assert_array_equal(found[0], found[2])


def test_channels_are_turned_before_mean_and_deviation(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    Image.new("RGB", (2, 2), (200, 100, 50)).save(path)
    how = Preprocessing(scale=1, mean=(1, 2, 3), std=(1, 1, 2), channels="BGR")
    assert read_image(path, how, (1, 3, 2, 2))[0, :, 0, 0].tolist() == [49, 98, 98.5]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_any_mode_become_the_models(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode).save(path)
    for shape in ((1, 3, 4, 4), (1, 1, 4, 4), (1, 4, 4, 1)):
        found = read_image(path, Preprocessing(), shape)
        assert found.shape == shape
        np.testing.assert_allclose(found, 1.0, atol=0.01)


def test_grey_values_are_pillows(photo: Path) -> None:
    found = read_image(photo, Preprocessing(scale=1), (1, 1, *SIZE))
    with Image.open(photo) as image:
        np.testing.assert_array_equal(found[0, 0], np.asarray(image.convert("L")))


@pytest.mark.parametrize(
    ("how", "shape", "match"),
    [
        (Preprocessing(crop=25), (1, 3, 25, 25), "20×30 pixels, too few for a crop of 25×25"),
        (Preprocessing(resize=8, crop=10), (1, 3, 10, 10), "too few"),
        (Preprocessing(resize=12, crop=10), (1, 3, 8, 8), "10×10 pixels after .* takes 8×8"),
        (Preprocessing(mean=(1, 2, 3)), (1, 1, 8, 8), "three channels, the model takes one"),
    ],
)
def test_images_that_do_not_fit_are_named(
    photo: Path, how: Preprocessing, shape: tuple[int, ...], match: str
) -> None:
    with pytest.raises(CalibrationError, match=match) as caught:
        read_image(photo, how, shape)
    assert caught.value.where == str(photo)


def test_a_description_is_read_with_all_its_keys(tmp_path: Path) -> None:
    text = """
        resize = 256
        crop = [224, 192]
        interpolation = "lanczos"
        scale = 1
        mean = 127.5
        std = [1, 2.5, 3]
        channels = "BGR"
    """
    assert described(tmp_path, text) == Preprocessing(
        256, (224, 192), "lanczos", 1.0, (127.5,), (1.0, 2.5, 3.0), "BGR"
    )
    assert described(tmp_path, "") == Preprocessing()


@pytest.mark.parametrize(
    "text",
    [
        "size = 3", "resize = 0", "resize = -1", "resize = 2.5", "resize = true", "resize = []",
        "resize = [1, 2, 3]", "crop = 'large'", "mean = [1, 2]", "mean = ['a']", "mean = 'a'",
        "std = 0", "std = [1, 0, 1]", "std = nan", "scale = inf", "scale = true", "scale = []",
        "interpolation = 'best'", "interpolation = 1", "channels = 'GRB'", "channels = ['RGB']",
        "not toml", "resize = 1\nresize = 2",
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        described(tmp_path, text)
    assert caught.value.where == str(tmp_path / "preprocessing.toml")
    key = text.partition(" ")[0]
    assert key in caught.value.what or "TOML" in caught.value.what


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_description_that_can_not_be_read_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "x.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(CalibrationError):
        Preprocessing.read(path)
