"""A model small enough to convert in seconds, with what real ones have at their borders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SHAPE = (1, 3, 16, 16)
CLASSES = 5


def make_module() -> torch.nn.Module:
    """Makes a convolutional classifier with a named input and a dict of outputs."""
    import torch
    from torch import nn

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.body = nn.Conv2d(8, 16, 3, padding=1)
            self.head = nn.Linear(16, CLASSES)

        def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
            x = torch.relu(self.norm(self.stem(pixels)))
            x = torch.relu(self.body(x))
            pooled = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
            return {"scores": self.head(pooled), "features": pooled}

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tiny().eval()


def save_archive(file: Path) -> Path:
    """Exports the model and saves it under a name of any ending."""
    import torch

    module = make_module()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        program = torch.export.export(module, (torch.rand(SHAPE),))
    under_its_own_ending = file.with_suffix(".pt2")  # torch warns about others
    torch.export.save(program, under_its_own_ending)
    os.replace(under_its_own_ending, file)
    return file


def save_samples(folder: Path, count: int, *, seed: int = 0) -> Path:
    """Fills a folder with .npy files of inputs that differ from each other."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        brightness = rng.uniform(0.2, 1.0)
        pixels = rng.uniform(0, brightness, SHAPE).astype(np.float32)
        np.save(folder / f"{number:03}.npy", pixels)
    return folder
