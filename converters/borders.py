"""The borders of the converted model: names, layouts and types, and the way to cross them.

`Border` (in `edgeport.source`) is a tensor of the original model; `FileBorder` says what became
of it in the file, and carries values across: layout, type, quantization and back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from edgeport.errors import InputError
from edgeport.source import Border, Source

_aten = torch.ops.aten

# Operators whose first input and first output are images in channels-first layout; the second
# lines are what `ExportedProgram.run_decompositions` makes of them.
_IMAGE_OPERATORS = {
    "conv2d", "conv_transpose2d", "batch_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d",
    "adaptive_max_pool2d", "group_norm", "instance_norm", "upsample_nearest2d",
    "upsample_bilinear2d", "upsample_bicubic2d", "pixel_shuffle", "pixel_unshuffle",
    "reflection_pad2d", "replication_pad2d", "grid_sampler", "prelu", "local_response_norm",
    "channel_shuffle", "feature_dropout", "fractional_max_pool2d", "lp_pool2d",

    "convolution", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit", "native_group_norm", "max_pool2d_with_indices",
    "_adaptive_avg_pool2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_nearest_exact2d", "grid_sampler_2d", "_prelu_kernel", "native_channel_shuffle",
}  # fmt: skip
# Operators whose output keeps the layout of their inputs of the same rank.
_NEUTRAL_OPERATORS = {
    "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh",
    "leaky_relu", "elu", "selu", "celu", "mish", "softplus", "softsign", "log_sigmoid",
    "hardshrink", "softshrink", "threshold", "rrelu", "add", "sub", "rsub", "mul", "div", "pow",
    "clamp", "clamp_min", "clamp_max", "clip", "neg", "abs", "sign", "sqrt", "rsqrt", "square",
    "reciprocal", "exp", "expm1", "log", "log1p", "log2", "sin", "cos", "erf", "floor", "ceil",
    "round", "trunc", "maximum", "minimum", "where", "masked_fill", "lerp", "addcmul", "addcdiv",
    "true_divide", "multiply", "divide", "subtract", "remainder", "fmod", "logical_not", "eq",
    "ne", "lt", "le", "gt", "ge", "softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum",
    "pad", "constant_pad_nd", "cat", "concat", "slice", "narrow", "flip", "roll", "index_select",
    "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk",
    "dropout", "native_dropout", "clone", "contiguous", "detach", "alias", "lift_fresh", "to",
    "_to_copy", "type_as", "float", "getitem",
}  # fmt: skip


def image_inputs(graph: GraphModule) -> set[int]:
    """Returns which placeholders are channels-first images: rank 4, used as such."""
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return {i for i, node in enumerate(placeholders) if _is_image(node, _users)}


def image_outputs(graph: GraphModule) -> set[int]:
    """Returns which leaves of the output are channels-first images: rank 4, made as such."""
    output = next(n for n in graph.graph.nodes if n.op == "output")
    leaves = pytree.tree_leaves(output.args[0])
    return {
        i for i, node in enumerate(leaves) if isinstance(node, Node) and _is_image(node, _makers)
    }


def _users(node: Node) -> Iterator[tuple[Node, bool]]:
    """Yields what uses a node, and whether as an image where it is an image operator."""
    for user in node.users:
        yield user, user.args[:1] == (node,)


def _makers(node: Node) -> Iterator[tuple[Node, bool]]:
    for maker in node.all_input_nodes:
        yield maker, True


def _is_image(start: Node, neighbours: Callable[[Node], Iterator[tuple[Node, bool]]]) -> bool:
    """Walks from a border through operators that keep the layout, looking for an image operator."""
    if _rank(start) != 4:
        return False
    seen: set[Node] = set()
    stack = [(start, True)] if neighbours is _makers else list(neighbours(start))
    while stack:
        node, as_image = stack.pop()
        name = _operator(node)
        if name in _IMAGE_OPERATORS and as_image:
            return True
        if node not in seen and _rank(node) == 4 and _keeps_layout(node):
            seen.add(node)
            stack += neighbours(node)
    return False


def _keeps_layout(node: Node) -> bool:
    name = _operator(node)
    if name in ("index", "_unsafe_index"):  # picks along one dimension, which stays in its place
        picked = [i for i in pytree.tree_leaves(node.args[1]) if i is not None]
        return len(picked) == 1 and isinstance(picked[0], Node) and _rank(picked[0]) == 1
    return name in _NEUTRAL_OPERATORS


def _rank(node: Node) -> int | None:
    """Returns the rank of a node's tensor, of the first one where it gives several."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value.dim() if isinstance(value, torch.Tensor) else None


def _operator(node: Node) -> str:
    """Returns an ATen operator's name; that of an in-place one without its underscore."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return ""
    name = str(schema.name).rpartition("::")[2]
    return name.removesuffix("_")


@dataclass(frozen=True, slots=True)
class FileBorder:
    """A tensor at the border of the file.

    Attributes:
        original: The same tensor of the original model.
        channels_last: Whether the file has it with channels last (original: channels first).
        dtype: Its numpy dtype in the file.
        scale: Quantization step, or None.
        zero_point: Quantized value of 0.0, or None.
    """

    original: Border
    channels_last: bool
    dtype: np.dtype[Any]
    scale: float | None = None
    zero_point: int | None = None

    @property
    def name(self) -> str:
        """Name in the signature."""
        return self.original.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        shape = self.original.shape
        return (shape[0], *shape[2:], shape[1]) if self.channels_last else shape

    @property
    def layout(self) -> Literal["as the model", "channels-last"]:
        """Layout in the file, in words."""
        return "channels-last" if self.channels_last else "as the model"

    def to_file(self, value: torch.Tensor | np.ndarray) -> np.ndarray:
        """Turns a value of the original model into what the file takes.

        Raises:
            InputError: It holds NaN, or integers, that the file's type can't hold.
        """
        array = to_numpy(value)
        if self.channels_last:
            array = np.moveaxis(array, 1, -1)
        if self.scale is not None and np.issubdtype(self.dtype, np.integer):
            limits = np.iinfo(self.dtype)
            steps = np.rint(array.astype(np.float32) / np.float32(self.scale)) + self.zero_point
            if np.isnan(steps).any():
                raise InputError(f"the input `{self.name}` holds NaN, which {self.dtype} lacks")
            array = np.clip(steps, limits.min, limits.max)
        elif np.issubdtype(self.dtype, np.integer) and np.issubdtype(array.dtype, np.integer):
            self._check_integers(array)
        # not ascontiguousarray, which turns a scalar into a vector
        return np.array(array, dtype=self.dtype, order="C")

    def _check_integers(self, array: np.ndarray) -> None:
        """Refuses integers that would wrap around: the file has 32 bits where torch has 64."""
        limits = np.iinfo(self.dtype)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise InputError(
                f"the input `{self.name}` holds values outside {limits.min}…{limits.max}; the "
                f"file takes {self.dtype}"
            )

    def from_file(self, value: np.ndarray) -> np.ndarray:
        """Turns what the file gives into the original model's layout, dequantized."""
        array = value
        if self.scale is not None and np.issubdtype(value.dtype, np.integer):
            array = (value.astype(np.float32) - np.float32(self.zero_point)) * np.float32(
                self.scale
            )
        return np.moveaxis(array, -1, 1) if self.channels_last else array


def to_numpy(value: Any) -> np.ndarray:
    """Returns a tensor or array-like as a numpy array; bfloat16, which numpy lacks, as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        return np.asarray((value.float() if value.dtype is torch.bfloat16 else value).numpy())
    return np.asarray(value)


class BorderedModule(torch.nn.Module):
    """The graph with named tensor inputs and a dict of named tensor outputs.

    Channels-last borders are permuted here; the converter moves the permutations inwards, where
    they cancel against those of the image operators.
    """

    def __init__(
        self,
        graph: GraphModule,
        source: Source,
        channels_last_inputs: set[str],
        channels_last_outputs: set[str],
    ) -> None:
        super().__init__()
        self.model = graph  # not `graph`: torch's unlifted modules have an attribute of that name
        self._source = source
        self._inputs = channels_last_inputs
        self._outputs = channels_last_outputs
        # The user's tensors are not ours to change, and a file has no inputs that change.
        self._copy_inputs = any(
            n.op == "call_function" and getattr(n.target, "_schema", None) is not None
            and n.target._schema.is_mutable
            for n in graph.graph.nodes
        )  # fmt: skip
        self.training = False  # exported modules refuse `eval()`

    def forward(self, **named: torch.Tensor) -> dict[str, torch.Tensor]:
        """Calls the graph with its own structure and takes the tensors out of its outputs."""
        leaves = list(self._source.example)
        for border in self._source.inputs:
            value = named[border.name]
            if self._copy_inputs:
                value = value.clone()
            leaves[border.position] = (
                value.permute(0, 3, 1, 2) if border.name in self._inputs else value
            )
        args, kwargs = pytree.tree_unflatten(leaves, self._source.in_spec)
        results = pytree.tree_leaves(self.model(*args, **kwargs))
        return {
            border.name: results[border.position].permute(0, 2, 3, 1)
            if border.name in self._outputs
            else results[border.position]
            for border in self._source.outputs
        }


def example_for(source: Source, channels_last_inputs: set[str]) -> dict[str, torch.Tensor]:
    """Returns the example inputs by name, as `BorderedModule` takes them; halves as float32."""
    example = {}
    for border in source.inputs:
        value = source.example[border.position].detach().clone()
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()
        if border.name in channels_last_inputs:
            value = value.permute(0, 2, 3, 1).contiguous()
        example[border.name] = value
    return example


_CLASS_MAKERS = {"linear", "addmm", "softmax", "log_softmax", "_softmax", "_log_softmax", "sigmoid"}
_FLATTENERS = {"view", "reshape", "flatten", "squeeze", "mean", "dropout", "_unsafe_view", "clone"}


def class_outputs(graph: GraphModule) -> set[int]:
    """Returns which leaves of the output are scores of classes, as far as the graph tells.

    A guess, used for top-k agreement only: N×C floats with at least 3 columns that come from a
    linear layer, a softmax, or a flattened image, and that nothing else is computed from.
    """
    output = next(n for n in graph.graph.nodes if n.op == "output")
    found = set()
    for i, node in enumerate(pytree.tree_leaves(output.args[0])):
        if not isinstance(node, Node) or _rank(node) != 2:
            continue
        value = node.meta["val"]
        name = _operator(node)
        if (
            value.is_floating_point()
            and value.shape[1] >= 3
            and all(user.op == "output" for user in node.users)
            and (name in _CLASS_MAKERS or name in _FLATTENERS)
        ):
            found.add(i)
    return found
