"""Reading ExportedProgram archives (`torch.export.save`) without trusting them.

`torch.export.load` unpickles parts of an archive, evaluates the text of its symbolic shapes,
writes its names into Python that it executes, and loads compiled code, without asking. So the
archive is examined first, and refused when loading it could run code.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgeport.errors import ModelFileError

if TYPE_CHECKING:
    import torch

_MAX_RATIO = 200  # far above what weights compress to; archives of torch are not compressed
_MAX_TEXT = 512 << 20  # a graph's JSON; the largest seen are some MB

# What torch writes into symbolic shapes: numbers, symbols, and these functions of sympy's and its
# own. Anything else never reaches sympy's parser, which evaluates Python.
_SHAPE_FUNCTIONS = frozenset(
    [
        "Symbol",
        "Abs",
        "Add",
        "Mul",
        "Eq",
        "Equality",
        "Ge",
        "GreaterThan",
        "Gt",
        "StrictGreaterThan",
        "Le",
        "LessThan",
        "Lt",
        "StrictLessThan",
        "Ne",
        "Unequality",
        "Max",
        "Min",
        "Mod",
        "Piecewise",
        "ExprCondPair",
        "PythonMod",
        "FloorDiv",
        "CeilDiv",
        "CleanDiv",
        "IntTrueDiv",
        "FloatTrueDiv",
        "ModularIndexing",
        "Where",
        "FloorToInt",
        "CeilToInt",
        "TruncToInt",
        "TruncToFloat",
        "RoundToInt",
        "RoundDecimal",
        "ToFloat",
        "PowByNatural",
        "FloatPow",
        "LShift",
        "RShift",
        "BitwiseFn_bitwise_and",
        "BitwiseFn_bitwise_or",
        "Identity",
        "And",
        "Or",
        "Not",
        "floor",
        "ceiling",
        "Integer",
        "Rational",
        "Float",
        "Pow",
        "IsNonOverlappingAndDenseIndicator",
    ]
)
_MAX_EXPRESSION = 20_000  # characters
_TEXT_ARGUMENT = {"Symbol": r"[A-Za-z_]\w*", "Float": r"-?[\d.]+(e[+-]?\d+)?"}
_ARITHMETIC = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop,
    ast.cmpop, ast.Tuple, ast.expr_context,
)  # fmt: skip

# Names become part of the Python that torch.fx writes and executes.
_NAME = re.compile(r"[A-Za-z_][\w.]*|")
_MEMBER_NAME = re.compile(r"[^\"'\\(){};=#\n\r]*")
_MEMBER_NAME_KEYS = frozenset(
    {"parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name"}
)
# Structures of inputs may import modules by name, for the factory of a defaultdict.
_HARMLESS_MODULES = frozenset({"builtins", "collections"})


def read_archive(path: Path) -> torch.export.ExportedProgram:
    """Loads an ExportedProgram from a file of any ending, after it was found safe.

    Raises:
        ModelFileError: It is no such archive, is damaged, or could run code when loaded.
    """
    where = str(path)
    import torch

    with path.open("rb") as file:
        _refuse_unsafe(file, where)
        file.seek(0)
        try:
            with _only_weights():
                program = torch.export.load(file)
        except Exception as e:
            raise ModelFileError(
                f"torch can't load this ExportedProgram archive "
                f"({type(e).__name__}: {_first_line(e)})",
                where=where,
                hint="save it again with `torch.export.save` and the torch version installed here",
            ) from e
    # Python text that torch would execute to check inputs; the shapes are fixed here anyway.
    program._guards_code = []
    return program


@contextlib.contextmanager
def _only_weights() -> Iterator[None]:
    """The second lock: `torch.load` never unpickles freely, whatever its caller asks for."""
    ours = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None}
    before = {name: os.environ.get(name) for name in ours}
    _set_environment(ours)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def refuse_other_archives(path: Path) -> None:
    """Refuses zip files that are no ExportedProgram, by their members alone; loads no torch.

    Raises:
        ModelFileError: The file holds something else, or is damaged.
    """
    with path.open("rb") as file, _opened(file, str(path)) as archive:
        _check_members(archive, str(path))


def _opened(file: IO[bytes], where: str) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as e:
        raise _damaged(e, where) from None
    # A zip inside a truncated zip, such as the example inputs, would be taken for the whole.
    file.seek(-22, os.SEEK_END)
    if file.read(4) != b"PK\x05\x06":
        raise _damaged(ValueError("it does not end as a zip file ends"), where)
    return archive


def _refuse_unsafe(file: IO[bytes], where: str) -> None:
    with _opened(file, where) as archive:
        try:
            _check_members(archive, where)
            for name, text in _texts(archive, where):
                _check_text(name, text, where)
            _check_pickles(archive, where)
            _check_same_to_torch(archive, file, where)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, UnicodeDecodeError) as e:
            raise _damaged(e, where) from None
        except (ValueError, RecursionError, NotImplementedError, RuntimeError) as e:
            raise ModelFileError(
                f"the archive's contents can't be read ({_first_line(e)})", where=where
            ) from None


def _damaged(error: Exception, where: str) -> ModelFileError:
    return ModelFileError(
        f"the archive is truncated or damaged ({_first_line(error)})",
        where=where,
        hint="copy the file again, or save it again with `torch.export.save`",
    )


def _check_members(archive: zipfile.ZipFile, where: str) -> None:
    names = archive.namelist()
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise ModelFileError(
                f"the archive holds a path that leads outside it: `{name}`",
                where=where,
                hint="don't use this file; it was made to overwrite others",
            )
    for name in names:
        if "aotinductor" in name.split("/"):
            raise ModelFileError(
                f"the archive holds compiled code, which loading it would run: `{name}`",
                where=where,
                hint="save the program alone, with `torch.export.save`",
            )
    if len(set(names)) != len(names):
        raise ModelFileError("the archive holds two members of the same name", where=where)
    for info in archive.infolist():
        if info.file_size > _MAX_RATIO * max(info.compress_size, 1) and info.file_size > 1 << 20:
            raise ModelFileError(
                f"`{info.filename}` unpacks to {info.file_size:,} bytes from "
                f"{info.compress_size:,}: a decompression bomb",
                where=where,
                hint="don't use this file; torch writes archives without compression",
            )
    plain = {name.partition("/")[2] for name in names}
    if not ("archive_format" in plain or "serialized_exported_program.json" in names):
        raise ModelFileError(_describe_other(names), where=where)


def _describe_other(names: list[str]) -> str:
    if any(n.endswith("/constants.pkl") for n in names):
        return (
            "this is a TorchScript archive, which edgeport can't read yet; load it in Python, "
            "export its eager model with `torch.export.export` and save that with "
            "`torch.export.save`"
        )
    if any(n.endswith("/data.pkl") for n in names):
        return (
            "this is a pickled checkpoint: unpickling can run any code, so edgeport does not; "
            "load it in Python, export the module with `torch.export.export` and save that with "
            "`torch.export.save`"
        )
    return "this zip file holds no ExportedProgram"


def _texts(archive: zipfile.ZipFile, where: str) -> Iterator[tuple[str, Any]]:
    for info in archive.infolist():
        if info.filename.endswith(".json"):
            if info.file_size > _MAX_TEXT:
                raise ModelFileError(f"`{info.filename}` is too large to be a graph", where=where)
            yield info.filename, json.loads(archive.read(info))


def _check_text(name: str, data: Any, where: str) -> None:
    """Refuses pickled payloads, shapes that are more than arithmetic, and names that are code."""
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            _check_entry(name, item, where)
            stack += item.values()
        elif isinstance(item, str) and item.lstrip().startswith(("{", "[")):
            with contextlib.suppress(ValueError):  # structures are JSON inside the JSON
                stack.append(json.loads(item))


def _check_entry(name: str, entry: dict[str, Any], where: str) -> None:
    path_name = entry.get("path_name")
    if entry.get("use_pickle"):
        raise _pickled(where, str(path_name or name))
    if isinstance(path_name, str) and path_name.startswith(("custom_obj", "opaque_obj")):
        raise _pickled(where, path_name)
    expression = entry.get("expr_str")
    if expression is not None and not is_arithmetic(str(expression)):
        raise _code(f"a symbolic shape holds code instead of arithmetic: `{expression}`", where)
    for key, value in entry.items():
        pattern = (
            _NAME if key in ("name", "as_name")
            else _MEMBER_NAME if key in _MEMBER_NAME_KEYS
            else None
        )  # fmt: skip
        if pattern and isinstance(value, str) and not pattern.fullmatch(value):
            raise _code(f"a name in the graph is no name: `{value[:200]}`", where)
    if "__enum__" in entry or entry.get("default_factory_module", "builtins") not in (
        _HARMLESS_MODULES
    ):
        raise _code("the structure of the inputs or outputs names a module to import", where)


def _code(what: str, where: str) -> ModelFileError:
    return ModelFileError(what, where=where, hint="don't use this file unless you know who made it")


def is_arithmetic(expression: str) -> bool:
    """Tells whether a symbolic shape is made of numbers, symbols and known functions only."""
    if len(expression) > _MAX_EXPRESSION:
        return False
    try:
        return _is_arithmetic(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name):
            return False
        name, args = node.func.id, list(node.args)
        if name not in _SHAPE_FUNCTIONS and not name.startswith("OpaqueUnaryFn_"):
            return False
        first = args[0] if args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            pattern = _TEXT_ARGUMENT.get(name)
            if pattern is None or not re.fullmatch(pattern, first.value):
                return False
            del args[0]
        values = [k.value for k in node.keywords if k.arg is not None]
        return len(values) == len(node.keywords) and all(map(_is_arithmetic, (*args, *values)))
    if isinstance(node, _ARITHMETIC):
        return all(map(_is_arithmetic, ast.iter_child_nodes(node)))
    return False


def _check_pickles(archive: zipfile.ZipFile, where: str) -> None:
    """Refuses members that torch could only read by unpickling freely."""
    import torch

    for name in archive.namelist():
        if name.endswith((".pt", ".pth", ".pkl")):
            content = archive.read(name)
            if not content:
                continue
            try:
                torch.load(io.BytesIO(content), weights_only=True)
            except Exception as e:
                raise _pickled(where, name) from e


def _check_same_to_torch(archive: zipfile.ZipFile, file: IO[bytes], where: str) -> None:
    """Refuses archives in which torch's reader finds something else than was checked here."""
    import torch

    names = archive.namelist()
    if "version" in names:  # written before torch 2.8; torch reads it with zipfile as well
        return
    file.seek(0)
    reader = torch._C.PyTorchFileReader(file)  # type: ignore[arg-type, call-arg, unused-ignore]
    records = set(reader.get_all_records())
    checked = {name.partition("/")[2]: name for name in names if not name.endswith("/")}
    same = records == set(checked) and all(
        reader.get_record(record) == archive.read(name)
        for record, name in checked.items()
        if record.endswith((".json", ".pt", ".pth", ".pkl"))
    )
    if not same:
        raise ModelFileError(
            "the archive reads differently with different zip readers",
            where=where,
            hint="don't use this file; save it again with `torch.export.save`",
        )


def _pickled(where: str, member: str) -> ModelFileError:
    return ModelFileError(
        f"`{member}` in the archive is pickled: reading it can run any code, so edgeport does not",
        where=where,
        hint="export the model again with plain tensors as weights, constants and example inputs",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""
