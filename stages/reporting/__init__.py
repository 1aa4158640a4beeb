"""Plots, the HTML report, provenance, comparison of variants."""
