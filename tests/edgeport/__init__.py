"""Tests of the package edgeport."""
