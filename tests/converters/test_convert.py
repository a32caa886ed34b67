"""One conversion from end to end of this package, with what makes borders hard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeport.converters.borders import FileBorder
from edgeport.converters.convert import convert, file_borders, rewrite
from edgeport.converters.export import from_module
from edgeport.runtime_check.runner import get_runner
from edgeport.source import Source
from edgeport.targets.base import GRAPH_PASSES
from tests.models import assert_close, outputs, quiet, with_statistics

pytestmark = [quiet, pytest.mark.slow]


class Hard(nn.Module):
    """Changes an input in place; gives back an input, an alias, a scalar, integers, None."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.table = nn.Embedding(10, 8)

    def forward(self, image: Any, index: Any, scale: float, *, none: Any = None) -> Any:
        image.mul_(2)
        x = torch.relu(self.norm(self.conv(image))) * scale
        y = x.mean((2, 3)) + self.table(index)
        return {
            "map": x, "same": x, "input": image, "best": y.argmax(1), "mean": y.mean(), "none": none
        }  # fmt: skip


Converted = tuple[Source, bytes, tuple[FileBorder, ...], tuple[FileBorder, ...]]


@pytest.fixture(scope="module", params=["float32", "float16"])
def converted(request: pytest.FixtureRequest) -> Converted:
    import warnings

    torch.manual_seed(0)
    dtype = getattr(torch, request.param)
    module = with_statistics(Hard()).to(dtype)
    image, index = torch.rand(1, 3, 6, 6).to(dtype), torch.tensor([3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's and litert-torch's own
        source = from_module(module, (image, index, 2.0), {"none": None})
        layout: Any = "channels-last" if request.param == "float32" else "keep"
        rewritten = rewrite(source, GRAPH_PASSES, layout, check_passes=True)
        content = convert(rewritten)
        inputs, found = file_borders(rewritten, content)
    return source, content, inputs, found


def test_the_file_computes_what_the_module_does(converted: Converted) -> None:
    source, content, inputs, borders = converted
    generator = torch.Generator().manual_seed(1)
    with get_runner("host").open(content) as session:
        for _ in range(2):
            leaves = list(source.example)
            image = torch.rand(1, 3, 6, 6, generator=generator).to(leaves[0].dtype)
            leaves[0], leaves[1] = image, torch.tensor([7])
            given = {b.name: b.to_file(leaves[b.original.position]) for b in inputs}
            results, _ = session.run(given)
            expected = outputs(source.reference, leaves)
            values = [torch.from_numpy(np.array(b.from_file(results[b.name]))) for b in borders]
            assert_close(values, expected, 1e-5 if image.dtype is torch.float32 else 5e-3)


def test_borders_are_named_and_laid_out_as_asked(converted: Converted) -> None:
    source, _, inputs, borders = converted
    last = source.inputs[0].dtype is torch.float32
    assert [(b.name, b.channels_last, b.dtype) for b in inputs] == [
        ("image", last, np.dtype("float32")), ("index", False, np.dtype("int32"))
    ]  # fmt: skip
    assert [(b.name, b.channels_last) for b in borders] == [
        ("map", last), ("same", last), ("input", False), ("best", False), ("mean", False)
    ]  # fmt: skip
