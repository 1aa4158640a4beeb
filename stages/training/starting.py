"""Which checkpoint a training goes on from."""

from stages.checkpoints.files import Saved
from stages.checkpoints.fingerprint import module_hash
from stages.runtime.exits import BadParams
from stages.runtime.files import canonical_json, sha256_bytes
from stages.runtime.progress import say
from stages.training.history import AlteredHistory, require_intact
from stages.training.job import Job


def require_same(job: Job) -> None:
    """Raises `BadParams`, on all ranks, where they were not given the same training."""
    told = {
        "settings": job.settings.model_dump(mode="json"),
        "seed": job.seed,
        "data": job.prepared.info.hash,
        "module": module_hash(job.module),
        "training": [job.store.fingerprint, job.store.code],
    }
    if not job.ranks.alike(sha256_bytes(canonical_json(told).encode())):
        raise BadParams(
            f"{job.name}: all processes of a training must be given the same settings, seed, data, code and starting "
            f"weights, some of the {job.ranks.size} differ; start them with the same arguments and files"
        )


def starting_point(job: Job) -> Saved | None:
    """The newest checkpoint beside which the history is as it left it; of several ranks, that all of them have.

    One of them may have been killed before it saved, and a checkpoint that was not due goes with the next one.
    """

    def fits(saved: Saved) -> bool:
        try:
            require_intact(job.store.history, saved.payload["progress"]["position"])
        except AlteredHistory as error:
            say(f"warning: {job.name}: does not go on from step {saved.step}: {error}")
            return False
        return True

    saved = job.store.latest(fits)
    if job.ranks.size == 1:
        return saved
    steps = [] if saved is None else [one.step for one in job.store.whole() if one.step <= saved.step and fits(one)]
    step = job.ranks.least(steps[0] if steps else -1)
    while job.ranks.any(step >= 0 and step not in steps)[0]:
        step = job.ranks.least(max((one for one in steps if one < step), default=-1))
    return job.store.load(step) if step >= 0 else None
