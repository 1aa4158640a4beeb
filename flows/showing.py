"""What a run shows in Prefect beside its log: progress while a stage trains, and its metrics, verdict and curves."""

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows import supervisor
from flows.ends import Ended
from stages.config.exits import Exit

_EPOCH = re.compile(r"^\w+: (epoch (\d+) of (\d+): .+)$")


class Progress:
    """Follows a stage's lines; from its first epoch on a progress artifact says how far it is, and the loss."""

    def __init__(self, stage: str) -> None:
        self._key = f"{key(stage)}-progress"
        self._artifact: UUID | None = None

    def line(self, line: str) -> None:
        """Looks at a line that the stage printed."""
        found = _EPOCH.match(line)
        if found is None:
            return
        said, epoch, epochs = found.groups()
        done = 100.0 * int(epoch) / int(epochs)
        if self._artifact is None:
            self._artifact = cast(UUID, create_progress_artifact(done, key=self._key, description=said))
        else:
            update_progress_artifact(self._artifact, done, description=said)


def key(stage: str) -> str:
    """A stage's name as Prefect's artifacts take it: `diagnose@train` -> `diagnose-train`."""
    return re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-")


def show(tree: Path, stage: str, ended: Ended, say: Callable[[str], None]) -> None:
    """Leaves a stage's table, verdict and curves, as `python -m stages.reporting stage` makes them."""
    command = [sys.executable, "-m", "stages.reporting", "stage", stage]
    code, printed = supervisor.call(command, cwd=tree, capture=True)
    if code != Exit.DONE:
        say(f"the results of {stage} cannot be shown: `python -m stages.reporting stage {stage}` ended with {code}")
        return
    try:
        view: dict[str, Any] = json.loads(printed)
    except ValueError:  # A project whose own reporting says something else. What a stage made does not hang on it.
        say(f"the results of {stage} cannot be shown: `python -m stages.reporting stage {stage}` printed no JSON")
        return
    if view["table"]:
        create_table_artifact(view["table"], key=f"{key(stage)}-table", description=f"{stage}: what it measured")
    said = f"**{stage}**: {ended.sentence}\n\n{view['markdown']}" if ended.sentence else view["markdown"]
    if said:
        create_markdown_artifact(said, key=f"{key(stage)}-decision", description=f"{stage}: what it decided, and why")
    if view["svg"]:
        picture = base64.b64encode(view["svg"].encode()).decode()
        url = f"data:image/svg+xml;base64,{picture}"
        create_image_artifact(url, key=f"{key(stage)}-curves", description=f"{stage}: loss by epoch")
