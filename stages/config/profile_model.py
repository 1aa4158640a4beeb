"""Section `profile_model`: how every model variant is measured."""

from stages.config.base import Count, Section


class ProfileModel(Section):
    """Measures every model variant on the saved file."""

    repeats: Count = 200
    """Timed runs per variant at batch 1, in alternating rounds."""

    warmup: Count = 20
    """Runs before timing, per variant and round."""

    throughput_batch: Count = 32
    """Samples per batch when the throughput is measured ..."""

    throughput_repeats: Count = 20
    """... and timed runs."""
