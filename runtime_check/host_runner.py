"""LiteRT on this machine with its fast CPU kernels (XNNPACK)."""

from edgeport.runtime_check.interpreter import InterpreterRunner

RUNNER = InterpreterRunner("host", "LiteRT on this machine's CPU (XNNPACK)", kernels="xnnpack")
