"""LiteRT's reference kernels: slow, and the specification of int8 arithmetic."""

from edgeport.runtime_check.interpreter import InterpreterRunner

RUNNER = InterpreterRunner("reference", "LiteRT's reference kernels", kernels="reference")
