"""Samples come from folders, files and iterables; what does not fit is named."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgeport.errors import CalibrationError
from edgeport.quantize.samples import Expected, Samples, check_source, find_files

IMAGE = [Expected("x", (1, 3, 4, 4), True)]
TWO = [Expected("a", (1, 3), True), Expected("n", (1,), False)]
A = np.arange(12, dtype=np.float32).reshape(4, 3)
N = np.arange(4)


def read(source: Any, expected: list[Expected] = TWO) -> list[dict[str, np.ndarray]]:
    return list(Samples(source, expected))


def refused(source: Any, match: str, expected: list[Expected] = TWO) -> CalibrationError:
    with pytest.raises(CalibrationError, match=match) as caught:
        read(source, expected)
    assert caught.value.exit_code == 2
    return caught.value


def assert_is_the_table(found: list[dict[str, np.ndarray]]) -> None:
    assert [list(s) for s in found] == [["a", "n"]] * 4
    np.testing.assert_array_equal(np.concatenate([s["a"] for s in found]), A)
    np.testing.assert_array_equal(np.concatenate([s["n"] for s in found]), N)
    assert found[0]["a"].shape == (1, 3)


@pytest.mark.parametrize(
    "source",
    [
        [(A[i : i + 1], N[i : i + 1]) for i in range(4)],
        [[A[i], N[i : i + 1]] for i in range(4)],
        [{"n": N[i : i + 1], "a": A[i], "label": 7} for i in range(4)],
        [(A, N)],
        [(A[:3], N[:3], "label"), (A[3:], N[3:], None)],
        [(torch.tensor(A).requires_grad_(), torch.tensor(N))],
        [{"arr_0": A, "arr_1": N}],
        [(A.tolist(), N.tolist())],
    ],
    ids=["tuples", "without batch", "by name", "a batch", "labels", "tensors", "arr_0", "lists"],
)
def test_iterables_of_every_kind_give_samples(source: Any) -> None:
    assert_is_the_table(read(source))


def test_generators_are_read_once_and_lists_again() -> None:
    assert not Samples(((A, N) for _ in range(1)), TWO).repeatable
    again = Samples([(A, N)], TWO)
    assert again.repeatable
    assert_is_the_table(list(again))
    assert_is_the_table(list(again))


def test_a_data_loader_gives_batches_with_labels() -> None:
    data = torch.utils.data.TensorDataset(torch.rand(5, 3, 4, 4), torch.arange(5))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    samples = Samples(loader, IMAGE)
    assert samples.repeatable
    found = list(samples)
    assert [s["x"].shape for s in found] == [(1, 3, 4, 4)] * 5
    np.testing.assert_array_equal(found[4]["x"][0], data[4][0].numpy())


def test_an_array_or_tensor_is_a_row_of_samples() -> None:
    values = np.random.default_rng(0).random((5, 3, 4, 4), np.float32)
    for source in (values, torch.tensor(values)):
        found = read(source, IMAGE)
        np.testing.assert_array_equal(np.concatenate([s["x"] for s in found]), values)


def test_batches_are_cut_to_the_models_and_the_rest_is_dropped() -> None:
    found = read([np.arange(14, dtype=np.float32).reshape(7, 2)], [Expected("x", (3, 2), True)])
    assert [s["x"][:, 0].tolist() for s in found] == [[0, 2, 4], [6, 8, 10]]


def test_scalars_are_samples() -> None:
    assert read([np.float32(3)], [Expected("x", (), True)]) == [{"x": np.float32(3)}]


def test_half_precision_is_read() -> None:
    found = read([torch.ones(1, 3, 4, 4, dtype=torch.bfloat16)], IMAGE)
    assert found[0]["x"].dtype == np.float32


# Files


def test_npy_and_npz_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    np.savez(tmp_path / "b.npz", a=A[1], n=N[1:2])
    np.savez_compressed(tmp_path / "deep" / "c.NPZ", A[2:], N[2:])
    (tmp_path / "deep" / "c.NPZ.npz").rename(tmp_path / "deep" / "c.NPZ")
    np.savez(tmp_path / "a.npz", a=A[:1], n=N[:1], more=np.ones(9))
    (tmp_path / "notes.txt").write_text("no sample")
    (tmp_path / "._a.npz").write_bytes(b"what macOS leaves")
    assert_is_the_table(read(tmp_path))
    assert_is_the_table(read(str(tmp_path)))
    files = [tmp_path / "a.npz", str(tmp_path / "b.npz"), tmp_path / "deep" / "c.NPZ"]
    assert_is_the_table(read(files))
    assert len(find_files(tmp_path)) == 3


def test_one_file_is_a_source(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4, 4), np.float32))
    assert len(read(tmp_path / "x.npy", IMAGE)) == 2


def test_images_are_read_with_the_description_at_the_top_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    Image.new("RGB", (4, 4), (255, 0, 51)).save(tmp_path / "cats" / "1.png")
    (tmp_path / "preprocessing.toml").write_text("scale = 1\nmean = [5, 0, 1]\n")
    samples = Samples(tmp_path, IMAGE)
    assert samples.warnings == []
    assert next(iter(samples))["x"][0, :, 0, 0].tolist() == [250, 0, 50]


def test_images_without_a_description_are_a_guess_with_a_warning(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9), (255, 0, 51)).save(tmp_path / "1.png")
    samples = Samples(tmp_path, IMAGE)
    assert "guess" in samples.warnings[0]
    np.testing.assert_allclose(next(iter(samples))["x"][0, :, 0, 0], [1, 0, 0.2], rtol=1e-6)


def test_a_description_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4), (2, 2, 2)).save(tmp_path / "images" / "1.png")
    (tmp_path / "how.toml").write_text("scale = 0.5\n")
    samples = Samples(tmp_path / "images", IMAGE, tmp_path / "how.toml")
    assert next(iter(samples))["x"].max() == 1.0
    unused = Samples([np.ones((1, 3, 4, 4), np.float32)], IMAGE, tmp_path / "how.toml")
    assert "not used" in unused.warnings[0]


@pytest.mark.parametrize(
    ("expected", "match"),
    [(TWO, "one float input"), ([Expected("x", (1, 3), True)], "one float input"),
     ([Expected("x", (1, 3, 4, 4), False)], "one float input"),
     ([Expected("x", (1, 7, 5, 9), True)], "takes no images")],
)  # fmt: skip
def test_images_for_a_model_that_takes_none_are_refused(
    tmp_path: Path, expected: list[Expected], match: str
) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    assert refused(tmp_path, match, expected).where == str(tmp_path)


# What does not fit


@pytest.mark.parametrize(
    ("item", "match"),
    [
        ((A[:, :2], N), "`a` has shape 4×2, the model takes 1×3"),
        ((A[0, 0], N[0]), "`a` has shape scalar"),
        ((A.astype(np.int64), N), "`a` is int64, the model takes floats"),
        ((A > 3, N), "`a` is bool, the model takes floats"),
        ((A, N.astype(np.float32)), "`n` is float32, the model takes integers"),
        ((np.where(A == 5, np.nan, A), N), "`a` holds 1 NaN or infinite"),
        ((np.where(A > 8, np.inf, A), N), "`a` holds 3 NaN or infinite"),
        ((A,), r"2 inputs \(a, n\), the sample 1"),
        (A, r"2 inputs \(a, n\), the sample 1"),
        ((A, N, 1, 2), "4 values"),
        ({"a": A}, "`n` is missing; there are: a"),
        ({}, "`a` is missing"),
        ((A, N[:3]), "`n` holds 3 samples, the inputs before it 4"),
        (([[1.0], [1.0, 2.0]], N), "`a` is no array"),
        ((np.array([None]), N), "`a` is no array of numbers"),
        (("text", N), "`a` is no array of numbers"),
        ((A + 1j, N), "`a` is complex64, the model takes floats"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(item: Any, match: str) -> None:
    assert refused([(A, N), item], match).where == "sample 1"


def test_a_batch_smaller_than_the_models_is_refused() -> None:
    refused([A[:2]], "shape 2×3, the model takes 4×3", [Expected("a", (4, 3), True)])


@pytest.mark.parametrize("source", [3, None, {"a": A}])
def test_what_is_no_source_is_refused(source: Any) -> None:
    refused(source, "samples are a folder, files or an iterable")


def test_missing_and_empty_folders_are_refused_at_once(tmp_path: Path) -> None:
    for path, match in ((tmp_path / "none", "no such file"), (tmp_path, "holds no samples")):
        with pytest.raises(CalibrationError, match=match) as caught:
            check_source(path)
        assert caught.value.where == str(path)
    check_source([])
    check_source(None)


@pytest.mark.parametrize("kind", ["damaged npz", "short npz", "pickled npz", "pickled npy",
                                  "damaged npy", "huge npy", "damaged png", "other", "missing"])  # fmt: skip
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x.png" if "png" in kind else "x." + kind.split()[-1])
    pickled = np.array([{"a": 1}], dtype=object)
    if kind == "damaged npz":
        np.savez_compressed(path, a=np.arange(999.0), n=N)
        content = bytearray(path.read_bytes())
        content[200:300] = bytes(100)
        path.write_bytes(content)
    elif kind == "short npz":
        np.savez(path, a=A, n=N)
        path.write_bytes(path.read_bytes()[:150])
    elif kind == "pickled npz":
        np.savez(path, a=pickled, n=N)
    elif kind == "pickled npy":
        np.save(path, pickled)
    elif kind == "damaged npy":
        path.write_bytes(b"\x93NUMPY nonsense")
    elif kind == "huge npy":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"
        head = b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little")
        path.write_bytes(head + header + b"\n")
    elif kind == "damaged png":
        Image.effect_noise((64, 64), 9).save(path)
        path.write_bytes(path.read_bytes()[:900])
    elif kind == "other":
        path.write_text("text")
    expected = IMAGE if "png" in kind else TWO
    match = "can't be read|not an image"
    assert refused([path], match, expected).where == str(path)


def test_a_zip_file_that_is_no_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    assert refused(path, "missing").where == str(path)
