import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeport import flatbuffer
from edgeport.errors import ModelFileError, UsageError
from edgeport.inspection import OperatorCount, Quantization, inspect
from tests import flatbuffers
from tests.flatbuffers import OpSpec, constant, op, tensor


def network() -> list[OpSpec]:
    """A convolution by channel, an addition and a reshape: 1×8×8×3 → 1×256."""
    weights = constant(
        "w",
        np.ones((4, 3, 3, 3), np.int8),
        scale=[
            0.1,
            0.2,
            0.3,
            0.4,
        ][:4],
    )
    bias = constant("b", np.zeros(4, np.int32), scale=[0.01] * 4)
    x, y = tensor("x", (1, 8, 8, 3), scale=0.5, zero_point=-3), tensor("y", (1, 8, 8, 4))
    z, flat = tensor("z", (1, 8, 8, 4)), tensor("flat", (1, 256))
    shape = constant("shape", np.array([1, 256], np.int32))
    return [
        op("CONV_2D", [x, weights, bias], [y], version=3, fusedActivationFunction=3),
        op("ADD", [y, y], [z], version=2),
        op("RESHAPE", [z, shape], [flat], newShape=[1, 256]),
    ]  # fmt: skip


def changed(**fields: Any) -> bytes:
    model = flatbuffers.build(network())
    for name, value in fields.items():
        setattr(model, name, value)
    return flatbuffer.serialize(model)


def signature(subgraph: int = 0, tensor_index: int = 0) -> Any:
    s = flatbuffer.schema()
    entry = s.TensorMapT()
    entry.name, entry.tensorIndex = "image", tensor_index
    made = s.SignatureDefT()
    made.signatureKey, made.subgraphIndex = "serving_default", subgraph
    made.inputs, made.outputs = [entry], []
    return made


def test_the_file_is_named_and_digested(tmp_path: Path) -> None:
    content = flatbuffers.build_bytes(network(), metadata={"min_runtime_version": b"2.3.0\0\0\0"})
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    found = inspect(path)
    assert found.file == str(path)
    assert (found.size, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (found.version, found.description) == (3, "built by a test")
    assert found.min_runtime_version == "2.3.0"
    assert inspect(content).file is None


def test_operators_have_their_tensors_options_and_multiply_accumulates() -> None:
    convolution, addition, reshape = (
        inspect(flatbuffers.build_bytes(network())).subgraphs[0].operators
    )
    assert (convolution.index, convolution.name, convolution.version) == (0, "CONV_2D", 3)
    assert convolution.input_names == ("x", "w", "b")
    assert convolution.output_names == ("y",)
    assert convolution.macs == 8 * 8 * 4 * 3 * 3 * 3
    assert convolution.options["padding"] == "SAME"
    assert convolution.options["fused_activation_function"] == "RELU6"
    assert convolution.options["stride_w"] == 1
    assert (addition.version, addition.macs) == (2, 0)
    assert reshape.options == {"new_shape": [1, 256]}
    assert reshape.inputs[0] == addition.outputs[0]


def test_tensors_have_types_shapes_quantization_and_constant_sizes() -> None:
    tensors = {t.name: t for t in inspect(flatbuffers.build_bytes(network())).subgraphs[0].tensors}
    assert (tensors["x"].type, tensors["x"].shape, tensors["x"].constant_bytes) == (
        "int8", (1, 8, 8, 3), 0,
    )  # fmt: skip
    assert tensors["x"].quantization == Quantization((0.5,), (-3,), 1, None)
    assert tensors["w"].constant_bytes == 4 * 3 * 3 * 3
    by_channel = tensors["w"].quantization
    assert by_channel is not None
    assert (by_channel.count, by_channel.axis) == (4, 0)
    assert by_channel.scales == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert tensors["shape"].quantization is None


def test_only_the_first_scales_are_kept() -> None:
    weights = constant("w", np.ones((9, 1, 1, 3), np.int8), scale=[0.1] * 9)
    model = [op("CONV_2D", [tensor("x", (1, 2, 2, 3)), weights], [tensor("y", (1, 2, 2, 9))])]
    found = inspect(flatbuffers.build_bytes(model)).subgraphs[0].tensors[1].quantization
    assert found is not None
    assert (len(found.scales), len(found.zero_points), found.count) == (4, 4, 9)


def test_sizes_count_shared_buffers_once_and_find_the_largest_activation() -> None:
    model = flatbuffers.build(network())
    before = inspect(flatbuffer.serialize(model)).sizes
    assert before.constants == 4 * 27 + 4 * 4 + 2 * 4
    assert before.largest_activation == 256
    # z and flat, or y and z, live at one time
    assert before.peak_activations == 512
    assert before.behind_flatbuffer == 0
    tensors = {flatbuffer.tensor_name(t): t for t in model.subgraphs[0].tensors}
    copy = flatbuffer.schema().TensorT()
    copy.__dict__.update(tensors["w"].__dict__)
    copy.name = "w again"
    model.subgraphs[0].tensors.append(copy)
    assert inspect(flatbuffer.serialize(model)).sizes.constants == before.constants


def test_scratch_space_and_states_count_all_the_time() -> None:
    state = tensor("state", (100,), variable=True)
    x, y, z = (tensor(n, (10,)) for n in "xyz")
    model = [op("CUSTOM", [x, state], [y], custom="Cell"), op("ABS", [y], [z])]
    found = inspect(flatbuffers.build_bytes(model, inputs=[x])).sizes
    assert found.peak_activations == 120
    assert found.largest_activation == 100


@pytest.mark.parametrize(
    ("dtype", "size"), [("int4", 5), ("int16", 18), ("complex64", 72), ("string", 0)]
)
def test_activations_of_other_types_have_their_size(dtype: str, size: int) -> None:
    model = [op("ABS", [tensor("x", (9,), dtype)], [tensor("y", (0,), dtype)])]
    assert inspect(flatbuffers.build_bytes(model)).sizes.largest_activation == size


def test_the_histogram_counts_operators_by_version() -> None:
    steps = flatbuffers.chain(("RELU", 1), ("RELU", 2), ("RELU", 2), ("ABS", 1))
    model = flatbuffers.build_bytes(steps, shared_codes=False)
    assert inspect(model).histogram == (
        OperatorCount("RELU", 2, 2, 0), OperatorCount("ABS", 1, 1, 0), OperatorCount("RELU", 1, 1, 0),
    )  # fmt: skip


def test_signatures_name_the_tensors_behind_them() -> None:
    (found,) = inspect(changed(signatureDefs=[signature()])).signatures
    assert (found.key, found.subgraph, found.outputs) == ("serving_default", 0, ())
    (image,) = found.inputs
    assert (image.name, image.tensor_name, image.type, image.shape) == (
        "image", "x", "int8", (1, 8, 8, 3),
    )  # fmt: skip


def test_a_model_without_signatures_has_none() -> None:
    assert inspect(flatbuffers.build_bytes(network())).signatures == ()


def test_metadata_is_named_with_its_size() -> None:
    model_metadata = b"\x10\0\0\0M001" + bytes(8)
    found = inspect(
        flatbuffers.build_bytes(
            network(), metadata={"TFLITE_METADATA": model_metadata, "a": b"xyz"}
        )
    )
    assert [(m.name, m.size) for m in found.metadata] == [("TFLITE_METADATA", 16), ("a", 3)]
    assert found.has_model_metadata
    assert not inspect(
        flatbuffers.build_bytes(network(), metadata={"TFLITE_METADATA": b"other"})
    ).has_model_metadata


def test_files_packed_behind_the_model_are_named() -> None:
    content = flatbuffers.build_bytes(network())
    assert inspect(content).associated_files == ()
    packed = io.BytesIO(content)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("labels.txt", "cat\ndog\n")
    assert inspect(packed.getvalue()).associated_files == ("labels.txt",)


def test_buffers_behind_the_flatbuffer_are_found() -> None:
    s = flatbuffer.schema()
    model = flatbuffers.build(network())
    index = next(t.buffer for t in model.subgraphs[0].tensors if flatbuffer.tensor_name(t) == "w")
    weights = bytes(model.buffers[index].data)
    outside = s.BufferT()
    outside.offset, outside.size = 1 << 20, len(weights)
    model.buffers[index] = outside
    body = flatbuffer.serialize(model)
    model.buffers[index] = outside  # once more, now that the place is known
    outside.offset = len(body)
    content = flatbuffer.serialize(model) + weights
    found = inspect(content)
    assert found.sizes.behind_flatbuffer == len(weights)
    assert found.sizes.constants == 4 * 27 + 4 * 4 + 2 * 4
    assert {t.name: t.constant_bytes for t in found.subgraphs[0].tensors}["w"] == len(weights)


def test_custom_operators_have_the_size_of_their_options() -> None:
    model = flatbuffers.build(
        [op("CUSTOM", [tensor("x", (4,))], [tensor("y", (4,))], custom="TFLite_Mine")]
    )
    model.subgraphs[0].operators[0].customOptions = np.arange(7, dtype=np.uint8)
    (found,) = inspect(flatbuffer.serialize(model)).subgraphs[0].operators
    assert (found.name, found.custom_options_bytes, found.options) == (
        "CUSTOM:TFLite_Mine", 7, {},
    )  # fmt: skip


def test_an_absent_optional_input_has_no_name() -> None:
    x, w, y = tensor("x", (1, 4)), constant("w", np.ones((2, 4), np.int8)), tensor("y", (1, 2))
    (found,) = (
        inspect(flatbuffers.build_bytes([op("FULLY_CONNECTED", [x, w, None], [y])]))
        .subgraphs[0]
        .operators
    )
    assert found.inputs[2] == -1
    assert found.input_names == ("x", "w", None)
    assert found.macs == 8


def test_an_unknown_builtin_code_is_shown_by_its_number() -> None:
    model = flatbuffers.build(network())
    model.operatorCodes[1].builtinCode = 4711
    assert inspect(flatbuffer.serialize(model)).subgraphs[0].operators[1].name == "BUILTIN_4711"


def test_a_convolution_without_weights_has_unknown_multiply_accumulates() -> None:
    model = [op("CONV_2D", [tensor("x", (1, 8, 8, 3))], [tensor("y", (1, 8, 8, 4))])]
    found = inspect(flatbuffers.build_bytes(model))
    assert found.subgraphs[0].operators[0].macs is None
    assert found.macs == 0


def test_open_dimensions_are_shown_and_do_not_count() -> None:
    model = flatbuffers.build(network())
    first = model.subgraphs[0].tensors[0]
    first.shape, first.shapeSignature = [-1, 8, 8, 3], [-1, 8, 8, 3]
    found = inspect(flatbuffer.serialize(model))
    assert found.subgraphs[0].tensors[0].shape_signature == (-1, 8, 8, 3)
    assert found.subgraphs[0].tensors[1].shape_signature is None
    assert found.sizes.largest_activation == 256


def test_all_subgraphs_are_listed_and_the_first_is_the_model() -> None:
    model = flatbuffers.build(network())
    model.subgraphs.append(flatbuffers.build(network()).subgraphs[0])
    model.subgraphs[1].name = "body"
    found = inspect(flatbuffer.serialize(model))
    assert [s.name for s in found.subgraphs] == ["main", "body"]
    assert found.macs == found.subgraphs[0].macs == 6912
    assert found.histogram[0].count == 2


def test_numbers_that_json_lacks_become_null() -> None:
    x, y = tensor("x", (4,), scale=float("nan")), tensor("y", (4,))
    found = inspect(flatbuffers.build_bytes([op("LEAKY_RELU", [x], [y], alpha=float("inf"))]))
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["schema_version"] == "1.0"
    assert data["subgraphs"][0]["operators"][0]["options"] == {"alpha": None}
    assert data["subgraphs"][0]["tensors"][0]["quantization"]["scales"] == [None]


def test_to_dict_is_what_json_gives_back() -> None:
    data = inspect(changed(signatureDefs=[signature()])).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file") as caught:
        inspect(tmp_path / "missing.tflite")
    assert caught.value.where == str(tmp_path / "missing.tflite")
    with pytest.raises(UsageError, match="Is a directory"):
        inspect(tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", b"PK\x03\x04" + bytes(100)])
def test_a_file_that_is_no_flatbuffer_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not a LiteRT flatbuffer") as caught:
        inspect(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"subgraphs": []},
        {"signatureDefs": [signature(subgraph=3)]},
        {"signatureDefs": [signature(tensor_index=99)]},
    ],
)
def test_references_to_what_is_not_there_are_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="damaged"):
        inspect(changed(**fields))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damage_is_survived_or_reported(data: st.DataObject) -> None:
    content = bytearray(changed(signatureDefs=[signature()]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(8, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(8, len(content))) :]
    try:
        found = inspect(bytes(content))
    except ModelFileError:
        return
    assert json.dumps(found.to_dict(), allow_nan=False)
