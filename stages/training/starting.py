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
            say(f"warning: {job.name}: does not go on from step {saved.step}: {error.what}")
            return False
        return True

    saved = job.store.latest(fits)
    if job.ranks.size == 1:
        return saved
    whole = [] if saved is None else [one for one in job.store.whole() if one.step <= saved.step and fits(one)]
    places = {_place(one): one.step for one in whole}
    place = job.ranks.least(max(places, default=-1))
    while job.ranks.any(place >= 0 and place not in places)[0]:
        place = job.ranks.least(max((one for one in places if one < place), default=-1))
    return job.store.load(places[place]) if place >= 0 else None


def _place(saved: Saved) -> int:
    """Also tells the end of an epoch before its validation from the one after it: both are of one step."""
    return 2 * saved.step + int(saved.payload["progress"]["window"] == 0)
