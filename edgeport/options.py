"""What a conversion was asked for, checked before anything heavy is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgeport.errors import UsageError, unknown_name
from edgeport.quantize.recipes import Recipe, get_recipe
from edgeport.targets import Target, get_target
from edgeport.targets.base import BorderType, Layout

Effort = Literal["fast", "balanced", "best"]


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options of `edgeport.convert`, which describes them."""

    target: Target
    recipe: Recipe
    layout: Layout
    io_type: BorderType
    effort: Effort
    calibration: Any
    evaluation: Any
    preprocessing: Path | None
    min_sqnr: float | None
    min_top1_agreement: float | None
    validate: bool
    check_passes: bool
    keep_stages: bool
    verbose: bool

    @staticmethod
    def resolve(
        *,
        target: str,
        recipe: str | None,
        layout: str | None,
        io_type: str | None,
        effort: str,
        calibration: Any,
        evaluation: Any,
        preprocessing: str | Path | None,
        min_sqnr: float | None,
        min_top1_agreement: float | None,
        validate: bool,
        check_passes: bool,
        keep_stages: bool,
        verbose: bool,
    ) -> Options:
        """Resolves names and defaults of the target.

        Raises:
            UsageError: A name is unknown, the target does not take the recipe, or options
                contradict each other.
        """
        chosen = get_target(target)
        how = get_recipe(recipe or chosen.recipes[0])
        if how.name not in chosen.recipes:
            raise UsageError(
                f"the target `{chosen.name}` does not take the recipe `{how.name}`",
                hint=f"it takes {', '.join(f'`{r}`' for r in chosen.recipes)}",
            )
        border = _one_of("io_type", io_type, BorderType) or chosen.border_type
        if not how.fully_integer:
            if io_type == "int8":
                raise UsageError(
                    f"the recipe `{how.name}` has float inputs and outputs",
                    hint="`--io-type int8` goes with `--recipe static_wi8_ai8`",
                )
            border = "float32"
        if calibration is not None and not how.needs_calibration:
            raise UsageError(
                f"the recipe `{how.name}` needs no calibration samples",
                hint="use `--evaluation` to validate on them, or `--recipe static_wi8_ai8`",
            )
        if not validate and (min_sqnr is not None or min_top1_agreement is not None):
            raise UsageError(
                "gates need validation", hint="drop `--no-validate`, `--min-sqnr` or both"
            )
        if min_sqnr is not None and not math.isfinite(min_sqnr):
            raise UsageError("`--min-sqnr` is a finite number of dB")
        if min_top1_agreement is not None and not 0.0 <= min_top1_agreement <= 1.0:
            raise UsageError("`--min-top1-agreement` is a share between 0 and 1")
        level = _one_of("effort", effort, Effort)
        assert level is not None
        return Options(
            target=chosen,
            recipe=how,
            layout=_one_of("layout", layout, Layout) or chosen.layout,
            io_type=border,
            effort=level,
            calibration=calibration,
            evaluation=evaluation,
            preprocessing=Path(preprocessing) if preprocessing is not None else None,
            min_sqnr=min_sqnr,
            min_top1_agreement=min_top1_agreement,
            validate=validate,
            check_passes=check_passes,
            keep_stages=keep_stages,
            verbose=verbose,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the options that shape the artefact as JSON-ready data."""
        return {
            "layout": self.layout,
            "io_type": self.io_type,
            "effort": self.effort,
            "calibration": _described(self.calibration),
            "evaluation": _described(self.evaluation),
            "preprocessing": str(self.preprocessing) if self.preprocessing else None,
            "min_sqnr": self.min_sqnr,
            "min_top1_agreement": self.min_top1_agreement,
            "validate": self.validate,
        }


def _one_of(name: str, value: str | None, kind: Any) -> Any:
    if value is not None and value not in get_args(kind):
        choices = get_args(kind)
        raise unknown_name(name, value, choices, see=f"it is one of {', '.join(choices)}")
    return value


def _described(samples: Any) -> str | None:
    if samples is None:
        return None
    return str(samples) if isinstance(samples, str | Path) else type(samples).__name__
