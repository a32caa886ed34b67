"""Reports on the terminal. Renders and computes nothing."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgeport.cli.pipes import silence_stdout
from edgeport.report import CompilerReport, Placement, Report
from edgeport.text import file_size, number

_COLOURS = {"passed": "green", "failed": "red", "not checked": "yellow"}


class ResultConsole(Console):
    """A console on stdout whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Prints no more; rich itself would end the command with the exit code 1."""
        self.quiet = True
        silence_stdout()


def console() -> Console:
    """Returns the console for results: stdout, wide enough for paths when it is no terminal."""
    out = ResultConsole(highlight=False, soft_wrap=False)
    return out if out.is_terminal else ResultConsole(highlight=False, width=max(out.width, 110))


def table(*columns: str, title: str | None = None) -> Table:
    """Returns an empty table in edgeport's style; columns that begin with > are right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column[:1] == ">" else "left")
    return made


def show_report(report: Report, folder: Path) -> None:
    """Prints a conversion's report, the verdict first."""
    out = console()
    colour = _COLOURS[report.verdict]
    out.print(
        f"[bold {colour}]{report.verdict}[/]  {escape(report.model.name)} → {report.target} "
        f"({report.recipe})"
    )
    for gate in report.gates:
        sign = "≥" if gate.passed else "<"
        out.print(
            f"  {gate.name}: {number(gate.value)} {sign} {number(gate.threshold)} "
            f"[dim]on the {gate.samples} samples[/]"
        )
    for warning in report.warnings:
        out.print(f"[yellow]warning[/] {escape(warning)}")
    show_placement_summary(out, report.placement, report.compiler)
    _show_borders(out, report)
    if report.accuracy:
        _show_accuracy(out, report)
    _show_files(out, report, folder)
    slow = [s for s in report.stages if s.seconds >= 0.1]
    total = sum(s.seconds for s in report.stages)
    peak = max((s.peak_memory for s in report.stages), default=0)
    out.print(
        f"{total:.1f} s ({', '.join(f'{s.name} {s.seconds:.1f}' for s in slow)}), "
        f"peak memory {file_size(peak)}"
    )


def show_placement_summary(out: Console, placement: Placement, compiler: CompilerReport) -> None:
    """Prints how many operators run where, the compiler's word, and each fallback's reason."""
    total = len(placement.operators)
    counts = ", ".join(f"{n} on {unit}" for unit, n in placement.count().items())
    sources = ", ".join(dict.fromkeys(o.source.partition(":")[0] for o in placement.operators))
    out.print(f"[bold]placement[/] {total} operators: {counts} [dim]({escape(sources)})[/]")
    if compiler.status != "not needed":
        out.print(f"[bold]{compiler.name}[/] {compiler.status}: {escape(compiler.message)}")
    reasons: dict[tuple[str, str, str], int] = {}
    for operator in placement.operators if compiler.status != "not needed" else ():
        if operator.on in ("cpu", "uncertain"):
            key = (operator.operator, operator.on, operator.reason)
            reasons[key] = reasons.get(key, 0) + 1
    for (name, unit, reason), count in reasons.items():
        out.print(f"  {escape(name)} × {count} [yellow]{unit}[/]: {escape(reason)}")


def _show_borders(out: Console, report: Report) -> None:
    borders = table("border", "name", "type", "shape", "in the model", ">scale", ">zero point")
    for kind, tensors in (("input", report.model.inputs), ("output", report.model.outputs)):
        for t in tensors:
            borders.add_row(
                kind,
                escape(t.name),
                t.dtype,
                "×".join(map(str, t.shape)),
                f"{t.original_dtype} {'×'.join(map(str, t.original_shape))}",
                number(t.scale) if t.scale is not None else "",
                str(t.zero_point) if t.zero_point is not None else "",
            )
    out.print(borders)


def _show_accuracy(out: Console, report: Report) -> None:
    shown = table(
        "against the original, on", "samples", "output", ">SQNR dB", ">cosine", ">max |Δ|",
        ">top-1", ">top-5", ">ms",
    )  # fmt: skip
    for a in report.accuracy:
        for o in a.outputs:
            shown.add_row(
                a.runner,
                f"{a.count} {a.samples}",
                escape(o.output),
                "exact" if o.sqnr_db >= 200 else f"{o.sqnr_db:.1f}",
                f"{o.cosine:.5f}",
                f"{o.max_abs_difference:.3g}",
                "" if o.top1_agreement is None else f"{o.top1_agreement:.1%}",
                "" if o.top5_agreement is None else f"{o.top5_agreement:.1%}",
                f"{a.median_ms:.1f}",
            )
    out.print(shown)


def _show_files(out: Console, report: Report, folder: Path) -> None:
    files = table("file", ">size", "")
    for f in report.files:
        files.add_row(escape(str(folder / f.name)), file_size(f.size), _ROLES.get(f.role, f.role))
    files.add_row(escape(str(folder / "report.json")), "", "everything above, and more")
    out.print(files)


_ROLES = {
    "model": "ship this",
    "flatbuffer": "what the compiler was given",
    "float": "before quantization",
    "log": "what the libraries printed",
}
