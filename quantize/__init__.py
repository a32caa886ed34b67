"""Calibration samples, ranges, recipes, and their way through ai-edge-quantizer.

Knows no target by name and imports neither `edgeport.converters` nor `edgeport.runtime_check`.
"""
