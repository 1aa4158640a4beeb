"""Distillation losses."""
