"""The layers of a float flatbuffer that have weights, and what they see of an activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgeport import flatbuffer

_SAME = 0  # `Padding.SAME` in the schema


@dataclass(frozen=True, slots=True)
class Layer:
    """A CONV_2D, DEPTHWISE_CONV_2D or FULLY_CONNECTED with constant float weights and bias.

    Attributes:
        operator: Its index in the main subgraph.
        kind: The operator's name.
        weights: float32: [out, kh, kw, in], for depthwise [1, kh, kw, out], for fully connected
            [out, in].
        bias: float32 [out].
        strides: Vertical and horizontal.
        dilations: Vertical and horizontal.
        same_padding: Whether the input is padded with zeros to keep its size (over the stride).
    """

    operator: int
    kind: str
    weights: np.ndarray
    bias: np.ndarray
    strides: tuple[int, int]
    dilations: tuple[int, int]
    same_padding: bool

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the kernel; 1×1 for fully connected layers."""
        if self.kind == "FULLY_CONNECTED":
            return 1, 1
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def per_channel(self) -> np.ndarray:
        """The weights as [out, taps · in]: a row for each output channel."""
        if self.kind == "DEPTHWISE_CONV_2D":
            return self.weights.reshape(-1, self.weights.shape[3]).T
        return self.weights.reshape(self.weights.shape[0], -1)

    def from_per_channel(self, rows: np.ndarray) -> np.ndarray:
        """Puts rows of `per_channel` back into the shape of the weights."""
        if self.kind == "DEPTHWISE_CONV_2D":
            rows = rows.T
        return np.ascontiguousarray(rows.reshape(self.weights.shape), dtype=np.float32)

    def taps(self, activation: np.ndarray) -> Iterator[np.ndarray]:
        """Yields what each tap of the kernel sees: [batch, out height, out width, in], row by row.

        Args:
            activation: The layer's input, [batch, height, width, in] or [..., in].
        """
        if self.kind == "FULLY_CONNECTED":
            yield activation.reshape(1, 1, -1, self.weights.shape[1])
            return
        sizes = []
        pads = []
        for size, kernel, stride, dilation in zip(
            activation.shape[1:3], self.kernel, self.strides, self.dilations, strict=True
        ):
            reach = (kernel - 1) * dilation + 1
            if self.same_padding:
                out = -(-size // stride)
                pad = max((out - 1) * stride + reach - size, 0)
            else:
                out, pad = (size - reach) // stride + 1, 0
            sizes.append(out)
            pads.append((pad // 2, pad - pad // 2))
        if any(sum(pad) for pad in pads):
            activation = np.pad(activation, ((0, 0), *pads, (0, 0)))
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                top, left = row * self.dilations[0], column * self.dilations[1]
                yield activation[
                    :,
                    top : top + (sizes[0] - 1) * self.strides[0] + 1 : self.strides[0],
                    left : left + (sizes[1] - 1) * self.strides[1] + 1 : self.strides[1],
                    :,
                ]


def find_layers(model: flatbuffer.Model) -> list[Layer]:
    """Finds the layers of the main subgraph whose weights and bias can be changed by themselves.

    Left out: weights that another operator also uses, grouped convolutions, depthwise convolutions
    with more outputs than inputs, and layers without a constant bias.
    """
    main = model.subgraphs[0]
    uses: dict[int, int] = {}
    for operator in main.operators:
        for index in flatbuffer.indices(operator.inputs):
            buffer = int(main.tensors[index].buffer)
            uses[buffer] = uses.get(buffer, 0) + 1
    layers = []
    for number, operator in enumerate(main.operators):
        kind = flatbuffer.operator_name(model, operator)
        if kind not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        inputs = [int(i) for i in operator.inputs]
        if len(inputs) < 3 or min(inputs[:3]) < 0:
            continue
        activation, weights_tensor, bias_tensor = (main.tensors[i] for i in inputs[:3])
        weights = flatbuffer.constant(model, weights_tensor)
        bias = flatbuffer.constant(model, bias_tensor)
        if weights is None or bias is None or weights.dtype != np.float32:
            continue
        depth = flatbuffer.shape(activation)[-1]
        if uses[int(weights_tensor.buffer)] > 1 or depth != weights.shape[-1]:
            continue
        layers.append(
            Layer(
                operator=number,
                kind=kind,
                weights=weights,
                bias=bias,
                strides=(
                    flatbuffer.option(operator, "strideH", 1),
                    flatbuffer.option(operator, "strideW", 1),
                ),
                dilations=(
                    flatbuffer.option(operator, "dilationHFactor", 1),
                    flatbuffer.option(operator, "dilationWFactor", 1),
                ),
                same_padding=flatbuffer.option(operator, "padding", _SAME) == _SAME,
            )
        )
    return layers


def set_constants(
    model: flatbuffer.Model, layer: Layer, weights: np.ndarray, bias: np.ndarray
) -> None:
    """Gives a layer other weights and bias, each in a tensor and buffer of its own."""
    main = model.subgraphs[0]
    operator = main.operators[layer.operator]
    inputs = [int(i) for i in operator.inputs]
    for position, values in ((1, weights), (2, bias)):
        old = main.tensors[inputs[position]]
        buffer = flatbuffer.schema().BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.uint8)
        model.buffers.append(buffer)
        if position == 1:  # used by this layer alone
            old.buffer = len(model.buffers) - 1
            continue
        tensor = flatbuffer.schema().TensorT()
        tensor.name = (flatbuffer.tensor_name(old) + f"_of_{layer.operator}").encode()
        tensor.shape, tensor.type, tensor.hasRank = old.shape, old.type, old.hasRank
        tensor.buffer = len(model.buffers) - 1
        main.tensors.append(tensor)
        inputs[position] = len(main.tensors) - 1
    operator.inputs = np.asarray(inputs, dtype=np.int32)
