"""The plan: which stages a target needs, and which of them may have to run."""

import pytest

from flows.dvc import Plan
from flows.ends import Refused

PLAN = Plan(
    order=("prepare", "train", "diagnose@train", "distill", "diagnose@distill", "bundle"),
    needs={
        "raw.dvc": frozenset(),
        "prepare": frozenset({"raw.dvc"}),
        "train": frozenset({"prepare"}),
        "diagnose@train": frozenset({"train"}),
        "distill": frozenset({"train", "diagnose@train"}),
        "diagnose@distill": frozenset({"distill"}),
        "bundle": frozenset({"diagnose@train", "diagnose@distill"}),
    },
    changed={},
)


def changed(*names: str) -> Plan:
    return Plan(PLAN.order, PLAN.needs, dict.fromkeys(names, "modified"))


def test_stale_stages_and_all_that_descend_from_them_are_candidates() -> None:
    assert PLAN.candidates() == []
    assert changed("distill").candidates() == ["distill", "diagnose@distill", "bundle"]
    assert changed("diagnose@train").candidates("distill") == ["diagnose@train", "distill"]
    assert changed("bundle").candidates("distill") == []


def test_changed_data_makes_everything_a_candidate() -> None:
    assert changed("raw.dvc").candidates() == list(PLAN.order)


def test_a_foreach_group_stands_for_its_members() -> None:
    assert PLAN.targets("diagnose") == ["diagnose@train", "diagnose@distill"]
    assert PLAN.steps("diagnose") == ["prepare", "train", "diagnose@train", "distill", "diagnose@distill"]


def test_an_unknown_stage_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(Refused, match="no stage is named 'distil'; did you mean 'distill'\\?"):
        PLAN.targets("distil")
