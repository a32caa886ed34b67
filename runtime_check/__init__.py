"""Runners, where an artefact runs, and comparisons with the original model.

Never knows how an artefact was made.
"""
