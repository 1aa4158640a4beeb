"""Section `bundle`: what is packed for deployment."""

from stages.config.base import Count, Section


class Bundle(Section):
    """The bundle: model, labels, predict.py, manifest with checksums, model card."""

    stored_predictions: Count = 8
    """Test samples whose predictions are stored in the bundle and compared by `shipway verify`."""
