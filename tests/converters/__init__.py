"""Tests of the package edgeport.converters."""
