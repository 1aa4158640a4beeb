"""Distillation and structured pruning."""
