"""Section `profile_model`: how every model variant is measured."""

from stages.config.base import Count, Section


class ProfileModel(Section):
    """Measures every model variant on the saved file."""

    repeats: Count = 3000
    """Timed runs per variant at batch 1, at most, in alternating rounds: slow variants are timed for a few seconds."""

    warmup: Count = 20
    """Runs before timing, per variant and round."""

    throughput_batch: Count = 32
    """Samples per batch when the throughput is measured ..."""

    throughput_repeats: Count = 90
    """... and timed runs."""
