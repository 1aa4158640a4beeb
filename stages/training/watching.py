"""The rules that look at each epoch's validation values: plateau, swinging loss, early stopping."""

from dataclasses import asdict

from stages.config.fit import Fit, Plateau
from stages.training.evaluate import Evaluation
from stages.training.history import Row
from stages.training.recovery import Condition, swings
from stages.training.schedule import PlateauWatch, Watched, should_stop, watch_monitor


def after_epoch(condition: Condition, settings: Fit, val: Evaluation) -> list[Row]:
    """Changes the condition by what each rule says of this epoch; the events that follow (`kind` and `what`)."""
    return [
        *_plateau(condition, settings, val),
        *_amplitude(condition, settings, val),
        *_early_stopping(condition, settings, val),
    ]


def _plateau(condition: Condition, settings: Fit, val: Evaluation) -> list[Row]:
    if settings.schedule != "reduce_on_plateau":
        return []
    rule = settings.plateau or Plateau()
    state, factor = PlateauWatch(rule).observe(Watched(**condition.plateau), val.loss)
    condition.plateau = asdict(state)
    if factor == 1.0:
        return []
    condition.lr_factor *= factor
    what = f"no better validation loss for {rule.patience} epochs; learning rate times {condition.lr_factor:g}"
    return [{"kind": "plateau", "what": what}]


def _amplitude(condition: Condition, settings: Fit, val: Evaluation) -> list[Row]:
    rule = settings.recovery.amplitude
    if rule is None:
        return []
    condition.val_losses = [*condition.val_losses, val.loss][-rule.epochs :]
    if not swings(condition.val_losses, rule):
        return []
    condition.val_losses = []
    what = f"the validation loss swings by more than {rule.share:g} of its mean over {rule.epochs} epochs"
    if rule.action == "stop":
        condition.ended, condition.end_status = what, "stopped"
        return [{"kind": "swinging_validation", "what": f"{what}; the training ends"}]
    condition.lr_factor *= 0.5
    condition.anomaly = True
    return [{"kind": "swinging_validation", "what": f"{what}; learning rate times {condition.lr_factor:g}"}]


def _early_stopping(condition: Condition, settings: Fit, val: Evaluation) -> list[Row]:
    rule = settings.early_stopping
    if rule is None or condition.ended:
        return []
    state = watch_monitor(Watched(**condition.stopping), rule, val.loss, val.accuracy)
    condition.stopping = asdict(state)
    if not should_stop(state, rule.patience):
        return []
    condition.ended = f"early stopping: no better {rule.monitor} for {rule.patience} epochs"
    return [{"kind": "early_stopping", "what": condition.ended}]
