"""show, restore and release on real small files; with the run's record, with dvc.lock's history, without git."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.checkpoints.dvclock import dvc_md5
from stages.checkpoints.store import Store
from stages.reporting import provenance, restoring
from stages.reporting.__main__ import main
from stages.reporting.provenance import describe
from stages.runtime import record
from stages.runtime.exits import BadData
from stages.runtime.files import digest, write_json
from tests.unit.reporting.build import IDENTITY, TRAIN, commit, git, identity, train_identity, weights

WEIGHTS = Path("artifacts/train/model/weights.safetensors")
BUNDLE = Path("artifacts/bundle")


@pytest.fixture
def repository(here: Path) -> Path:
    """The workspace as a git repository whose artifacts are not in git, as DVC keeps them."""
    (here / ".gitignore").write_text("/artifacts/\n/.shipway/\n/.dvc/cache\n")
    git(here, "init", "-q", "-b", "main")
    commit(here, "start")
    return here


def lock(folder: Path, *paths: Path, lr: float = 0.003) -> None:
    """A dvc.lock that records these paths as the outputs of `train`, with its parameters as params.yaml has them."""
    outs = "".join(f"    - path: {path.as_posix()}\n      hash: md5\n      md5: {dvc_md5(path)}\n" for path in paths)
    params = f"    params:\n      params.yaml:\n        seed: 0\n        train:\n          lr: {lr}\n"
    body = f"  train:\n    cmd: python -m stages.train\n{params}    outs:\n{outs}"
    (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{body}")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_show_joins_the_identity_with_the_record(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.write("bundle", [BUNDLE], IDENTITY, {"result": {}})
    code, out, _ = shown(capsys, "show", "artifacts/bundle")
    assert code == 0
    assert out.startswith("artifacts/bundle: bundle\n")
    assert git(repository, "rev-parse", "HEAD").strip() in out
    assert "its commit is checked out" in out
    assert "uncommitted changes" not in out
    assert "train.lr: 0.003" in out
    assert "artifacts/quantize/model: aaaa" in out
    code, out, _ = shown(capsys, "show", "artifacts/bundle", "--json")
    found = json.loads(out)
    assert (found["kind"], found["digest"], found["identity"]) == ("bundle", digest(BUNDLE), IDENTITY)
    assert found["made"]["dirty"] is False


@pytest.mark.parametrize("result", [{"mixed": True}, {"rounds": [{"mixed": False}, {"mixed": True}]}])
def test_show_tells_of_a_training_over_a_change_of_code(
    repository: Path, result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.is_dir()
    record.write("train", [WEIGHTS.parent], train_identity(), {"result": result})
    assert "mixed: its training went on over a change of code" in shown(capsys, "show", str(WEIGHTS))[1]


def test_show_tells_of_a_dirty_tree_and_a_detached_head(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "checkout", "-q", "--detach")
    (repository / "new.py").write_text("1\n")
    record.write("bundle", [BUNDLE], IDENTITY, {})
    _, out, _ = shown(capsys, "show", "artifacts/bundle")
    assert "with uncommitted changes" in out
    assert "detached HEAD" in out


def test_changed_parameters_alone_are_no_uncommitted_changes(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are recorded by value, and `restore` writes them back."""
    (repository / "params.yaml").write_text("seed: 1\n")
    record.write("bundle", [BUNDLE], IDENTITY, {})
    assert "uncommitted changes" not in shown(capsys, "show", "artifacts/bundle")[1]


def test_show_onnx_and_safetensors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "stage      quantize" in shown(capsys, "show", "artifacts/quantize/model/model.onnx")[1]
    assert "stage      train" in shown(capsys, "show", str(WEIGHTS))[1]
    assert "artifact" in shown(capsys, "show", "artifacts/train/model")[1]


def test_a_file_from_elsewhere_is_shown_as_such(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights(here / "other.safetensors", None)
    code, out, _ = shown(capsys, "show", "other.safetensors")
    assert (code, "carries no identity" in out) == (0, True)
    code, out, err = shown(capsys, "restore", "other.safetensors")
    assert (code, out) == (65, "")
    assert "parameters are not known" in err


def test_without_git_it_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = shown(capsys, "show", "artifacts/bundle")
    assert "no git repository" in out
    record.write("bundle", [BUNDLE], IDENTITY, {})
    _, out, _ = shown(capsys, "show", "artifacts/bundle")
    assert "no commit: no git repository or no commit" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_repository_of_another_user_is_named_as_the_cause(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (repository, repository / ".git"):
        os.chown(path, 65534, 65534)
    record.write("bundle", [BUNDLE], IDENTITY, {})
    _, out, _ = shown(capsys, "show", "artifacts/bundle")
    assert (
        f"git refuses the folder, since another user owns it (git config --global --add safe.directory {repository})"
        in out
    )


def test_the_history_of_dvc_lock_names_the_commit(repository: Path) -> None:
    lock(repository, WEIGHTS.parent, BUNDLE)
    first = commit(repository, "ran")
    (repository / "README").write_text("later\n")
    commit(repository, "later")
    git(repository, "checkout", "-q", "--detach")
    for path in (WEIGHTS.parent, WEIGHTS, BUNDLE):
        made = describe(path)["made"]
        assert (made["commit"], made["dirty"]) == (first, None)
        assert "records these bytes" in made["how"]


def test_a_loose_file_is_found_in_the_listing_of_a_folder(repository: Path) -> None:
    lock(repository, WEIGHTS.parent)
    first = commit(repository, "ran")
    shutil.copy(WEIGHTS, "moved.safetensors")
    name = dvc_md5(WEIGHTS.parent)
    cached = repository / ".dvc/cache/files/md5" / name[:2] / name[2:]
    cached.parent.mkdir(parents=True)
    cached.write_text(json.dumps([{"md5": dvc_md5(WEIGHTS), "relpath": WEIGHTS.name}]))
    made = describe(Path("moved.safetensors"))["made"]
    assert (made["commit"], "a folder with this file" in made["how"]) == (first, True)


def test_without_any_hash_the_parameters_tell(repository: Path) -> None:
    lock(repository, WEIGHTS.parent, lr=0.1)
    commit(repository, "another lr")
    lock(repository, WEIGHTS.parent)
    second = commit(repository, "this lr")
    weights(repository / "changed.safetensors", {**train_identity(), "code": "e" * 64})
    made = describe(Path("changed.safetensors"))["made"]
    assert (made["commit"], "same parameters" in made["how"]) == (second, True)


def test_a_lock_that_is_not_committed_is_named(repository: Path) -> None:
    lock(repository, WEIGHTS.parent)
    made = describe(WEIGHTS)["made"]
    assert made["commit"] is None
    assert "commit it" in made["how"]


def test_a_checkpoint_shows_and_restores(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = {"from_step": 0, "to_step": 20, "code": "c" * 64, "commit": "a" * 40, "dirty": None, "branch": "main"}
    segment |= {"versions": {"python": "3.11"}, "host": {"name": "here"}, "started": "2026-01-01T00:00:00+00:00"}
    about = {"params": {"model": {"name": "mlp"}, "train": {"lr": 0.5}}, "data": "d" * 64, "seed": 3, "threads": 1}
    store = Store("train", "f" * 64, "c" * 64, about={**about, "inputs": {}})
    path = store.save(20, {"weights": torch.ones(2)}, {"status": "running", "lineage": [segment]}, None)
    code, out, _ = shown(capsys, "show", str(path))
    assert code == 0
    assert "steps 0 to 20: aaaaaaaaaaaa" in out
    assert "intact: true" in out
    restored = json.loads(shown(capsys, "restore", str(path))[1])
    assert restored["sections"] == {"model.name": "mlp", "train.lr": 0.5, "seed": 3, "threads": 1}
    assert (restored["commit"], restored["dirty"]) == ("a" * 40, False)
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    assert "checksum does not hold" in shown(capsys, "show", str(path))[1]


def test_restore_gives_the_sections_of_the_file_and_its_ancestors(here: Path) -> None:
    found = restoring.restore(BUNDLE)
    assert found["sections"] == {
        "seed": 0, "threads": 2, "bundle": {"stored_predictions": 4}, "train": TRAIN["train"], "model": TRAIN["model"],
    }  # fmt: skip
    assert found["commit"] is None


def test_a_key_below_a_section_goes_back_to_its_place(here: Path) -> None:
    about = identity("find_batch_size", params={"seed": 0, "train.batch_size": 128}, ancestors={})
    weights(here / "x.safetensors", about)
    assert restoring.restore(Path("x.safetensors"))["sections"] == {"seed": 0, "train.batch_size": 128}


def test_ancestors_that_disagree_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"find_batch_size": {"params": {"train.epochs": 9}, "code": "f", "versions": {}, "parents": {}}}
    weights(here / "x.safetensors", identity("train", params=TRAIN, ancestors=other))
    code, out, err = shown(capsys, "restore", "x.safetensors")
    assert (code, out) == (65, "")
    assert "train.epochs: 9 in find_batch_size, 6 in train" in err


def damage(path: Path) -> None:
    path.write_bytes(b"\x00\x01" + os.urandom(40))


@pytest.mark.parametrize("command", ["show", "restore"])
@pytest.mark.parametrize("name", ["x.safetensors", "x.onnx", "x.pt"])
def test_a_damaged_file_is_one_line(here: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage(here / name)
    code, out, err = shown(capsys, command, name)
    assert (code, out, len(err.splitlines())) == (65, "", 1)
    assert name in err


@pytest.mark.parametrize("command", ["show", "restore"])
def test_foreign_files_and_empty_ones_are_one_line(
    here: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights(here / "foreign.safetensors", {"stage": 3})
    weights(here / "half.safetensors", identity("train", ancestors={"a": 1}))
    (here / "garbage.safetensors").write_bytes(b"\xff" * 40)
    (here / "empty.onnx").write_bytes(b"")
    (here / "bare.onnx").write_bytes(b"\x08\x0a")
    said = {
        "foreign.safetensors": "not of Shipway's form",
        "half.safetensors": "not of Shipway's form",
        "garbage.safetensors": "is no safetensors file",
        "empty.onnx": "empty.onnx is empty, so no onnx file",
        "bare.onnx": "is no ONNX model",
    }
    for name, words in said.items():
        code, out, err = shown(capsys, command, name)
        assert (code, out, len(err.splitlines())) == (65, "", 1), err
        assert words in err


@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing.onnx", "is missing"), ("params.txt", "unknown kind"), ("artifacts", "is no artifact")],
)
def test_what_cannot_be_shown_is_one_line(here: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "params.txt").write_text("")
    code, out, err = shown(capsys, "show", name)
    assert (code, out, len(err.splitlines())) == (65, "", 1)
    assert said in err


def test_a_release_takes_its_record_along_and_may_be_repeated(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write("bundle", [BUNDLE], IDENTITY, {"result": {"a": 1}})
    found, dest = digest(BUNDLE), tmp_path / "out" / "deep"
    for _ in range(2):
        code, out, _ = shown(capsys, "release", str(dest))
        assert (code, str(dest / found) in out) == (0, True)
        assert sorted(path.name for path in dest.iterdir()) == [found, f"{found}.record.json"]
        assert digest(dest / found) == found
    shutil.rmtree(repository / ".shipway")
    (repository / ".git").rename(tmp_path / "git")
    made = describe(dest / found)["made"]
    assert (made["commit"] is None, made["how"]) == (False, "the record of its run")
    inside = describe(dest / found / "model.onnx")["made"]
    assert inside["how"] == "the record of the bundle that it lies in"
    (dest / found / "README.md").write_text("changed")
    assert "changed since its release" in " ".join(describe(dest / found)["notes"])


def test_a_file_put_into_a_released_folder_gets_no_record(here: Path, tmp_path: Path) -> None:
    record.write("bundle", [BUNDLE], IDENTITY, {})
    released = tmp_path / "out" / digest(BUNDLE)
    assert main(["release", str(released.parent)]) == 0
    shutil.rmtree(here / ".shipway")
    of_the_bundle = "the record of the bundle that it lies in"
    assert describe(released / "model.onnx")["made"]["how"] == of_the_bundle
    stranger = weights(released / "stranger.safetensors", train_identity())
    replaced = released / "model.onnx"
    shutil.copy(replaced, tmp_path / "model.onnx")
    replaced.write_bytes(replaced.read_bytes() + b"\x00\x00")
    for path in (stranger, replaced):
        assert provenance.find_record(path, digest(path)) is None
    (released / "manifest.json").write_text("[]")
    shutil.copy(tmp_path / "model.onnx", replaced)
    assert provenance.find_record(replaced, digest(replaced)) is None


def test_the_root_folder_and_a_foreign_record_are_one_line(here: Path, tmp_path: Path) -> None:
    assert provenance.find_record(Path("/"), "0" * 64) is None
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "out/b"))
    write_json(tmp_path / "out/b.record.json", [1])
    with pytest.raises(BadData, match=r"b\.record\.json is damaged"):
        describe(bundle)


def test_a_release_without_the_record_takes_what_dvc_lock_tells(repository: Path, tmp_path: Path) -> None:
    lock(repository, BUNDLE)
    first = commit(repository, "ran")
    assert main(["release", str(BUNDLE), str(tmp_path / "out")]) == 0
    taken = json.loads((tmp_path / "out" / f"{digest(BUNDLE)}.record.json").read_text())
    assert (taken["git"]["commit"], taken["stage"]) == (first, "bundle")


def test_a_release_overwrites_nothing_and_refuses_damage(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dest, found = tmp_path / "out", digest(BUNDLE)
    write_json(dest / found / "other.json", 1)
    code, _, err = shown(capsys, "release", str(dest))
    assert (code, "holds something else" in err) == (74, True)
    assert [path.name for path in (dest / found).iterdir()] == ["other.json"]
    shutil.rmtree(dest)
    (BUNDLE / "labels.json").write_text("[]")
    code, _, err = shown(capsys, "release", str(dest))
    assert (code, dest.exists(), len(err.splitlines())) == (65, False, 1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["artifacts/train/model", "out"], 65),
        (["nowhere", "out"], 65),
        (["artifacts/bundle", "artifacts/bundle/inside"], 64),
        (["artifacts/bundle", "artifacts/out"], 64),
        (["artifacts/bundle", "link to artifacts/out"], 64),
        (["artifacts/bundle", "stages/models"], 64),
        (["artifacts/bundle", "."], 64),
        (["artifacts/bundle", ""], 64),
        (["artifacts/bundle", "../a file/out"], 74),
        (["artifacts/bundle", "../circle/out"], 74),
        (["artifacts/bundle", "/proc/x"], 74),
    ],
)
def test_a_release_that_cannot_be_is_one_line(
    here: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (here.parent / "a file").write_text("")
    (here / "link to artifacts").symlink_to("artifacts")
    (here.parent / "circle").symlink_to("circle")
    got, out, err = shown(capsys, "release", *arguments)
    assert (got, out, len(err.splitlines())) == (code, "", 1), err


def test_nothing_is_imported_that_takes_seconds(here: Path) -> None:
    import subprocess
    import sys

    root = Path(__file__).parents[3]
    script = f"import sys; sys.path.insert(0, {str(root)!r}); from stages.reporting.__main__ import main; "
    script += "main(['report']); main(['show', 'artifacts/bundle']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "arguments", [[], ["shov"], ["show"], ["show", "--nonsense", "x.onnx"], ["release", "a", "b", "c"], ["restore"]]
)
def test_a_wrong_command_line_is_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^64$"):
        main(arguments)
    assert "usage:" in capsys.readouterr().err


def test_a_name_that_starts_with_a_dash_works_after_two(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("artifacts/quantize/model/model.onnx", "-x.onnx")
    shutil.copytree(BUNDLE, "-bundle")
    assert shown(capsys, "show", "--", "-x.onnx")[1].startswith("-x.onnx: onnx\n")
    assert json.loads(shown(capsys, "show", "--json", "--", "-x.onnx")[1])["kind"] == "onnx"
    assert shown(capsys, "restore", "--", "-x.onnx")[0] == 0
    assert shown(capsys, "release", "--", "-bundle", "../-out")[0] == 0
    assert (here.parent / "-out" / digest(BUNDLE)).is_dir()


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"epoch": 3},
        {"stage": 1, "code": "c"},
        {"stage": "train", "code": "c", "lineage": ["x"]},
        {"stage": "train", "code": "c", "lineage": [{"commit": None}]},
        {"stage": "train", "code": "c", "params": [1]},
    ],
)
def test_a_file_with_a_meta_of_another_program_is_one_line(
    here: Path, meta: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"meta": meta}, "foreign.pt")
    code, out, err = shown(capsys, "show", "foreign.pt")
    assert (code, out, len(err.splitlines())) == (65, "", 1), err
    assert "no checkpoint of Shipway" in err


def test_describe_raises_for_what_is_missing() -> None:
    with pytest.raises(BadData, match="is missing"):
        describe(Path("nowhere/at.all"))


def test_merge_keeps_sections_whole() -> None:
    stages: dict[str, dict[str, Any]] = {"a": {"train": {"lr": 1}}, "b": {"train.lr": 1, "prune.fit": {"lr": 2}}}
    assert restoring.merge(stages) == {"train": {"lr": 1}, "prune.fit": {"lr": 2}}
    assert restoring.conflicts(stages) == {}
