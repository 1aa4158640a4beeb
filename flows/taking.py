"""`shipway take`: a served run's result comes into a person's own working tree."""

from collections.abc import Callable
from pathlib import Path

from flows import cache, git, supervisor, workspace
from flows.ends import Refused
from stages.config.exits import Exit


def take(tree: Path, branch: str, say: Callable[[str], None]) -> int:
    """Merges the branch and checks its artifacts out. Raises `Refused`; a merge that conflicts is taken back."""
    git.commit_of(tree, branch)
    if git.is_detached(tree):
        raise Refused(Exit.PARAMS, f"HEAD is on no branch, where {branch} would be lost; `git switch` to one first")
    with workspace.only_run(tree, say):
        changed = git.uncommitted(tree)
        if changed:
            raise Refused(
                Exit.PARAMS, f"uncommitted changes must be committed or stashed first: {', '.join(changed[:5])}"
            )
        in_the_way = git.in_the_way(tree, branch)
        if in_the_way:
            raise Refused(
                Exit.PARAMS,
                f"{branch} brings files that lie here, too, and are in no commit: {', '.join(in_the_way[:5])}; commit "
                "them or move them away",
            )
        code, _ = supervisor.call(["git", "merge", "--quiet", "--no-edit", "--", branch], cwd=tree)
        if code:
            supervisor.call(["git", "merge", "--abort"], cwd=tree)
            raise Refused(
                Exit.PARAMS,
                f"{branch} cannot be merged by itself, and nothing was changed; `git merge {branch}` by hand",
            )
        cache.bring_in(tree, say)
    say(f"{branch} is merged, its artifacts are checked out; `shipway run` says what is still stale")
    return Exit.DONE
