"""`MIP` and `CPSAT` on chains with stage options, kinds of runs and super-stages."""

from __future__ import annotations

from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains_with_environments import CHAINS_AND_LEAST_BUDGETS
from chainstay.dp import DP, least_budget
from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.chain.formulation import build
from chainstay.problems.exactness import is_complete
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards
from chainstay.solution import Family
from chainstay.validation import search
from chainstay.verify.option_instances import ENVIRONMENTS, OPTION_FAMILIES
from formulation_support import RULES, answer, certified
from golden_options import ALL, GoldenOptions
from strategies import chains

Formulation: TypeAlias = type[MIP] | type[CPSAT]

SHORT: Final = 4
"""Stages of golden chains that are solved in a moment."""
both = pytest.mark.parametrize("formulation", [MIP, CPSAT])


def speaks_of(golden: GoldenOptions, rules: Discards) -> bool:
    """Return whether, by the conditions in the file, a single sweep per phase is optimal."""
    facts = golden.facts
    if rules is Discards.FREE or not facts.get("all_need_input", True):
        return False
    if not facts.get("condition_N", True):
        return False
    if rules is Discards.TAPE:
        return bool(facts.get("domain_A_options", facts["domain_A"]))
    is_covered = facts.get("domain_B_options", facts["domain_B"])
    return bool(is_covered) and bool(facts.get("condition_E", True))


def agrees_with_golden(formulation: Formulation, golden: GoldenOptions) -> None:
    """The optimum or least budget where the program speaks of all schedules; else none better."""
    refused = dict[Discards, int]()
    for rules in Discards:
        optimum, is_exact = golden.optimum[rules], speaks_of(golden, rules)
        try:
            claim = formulation(discards=rules)(golden.profile, golden.budget)
        except InfeasibleBudgetError as error:
            refused[rules] = error.required
            continue
        makespan = certified(golden.profile, golden.budget, claim)
        assert optimum is not None
        assert makespan >= optimum
        if is_exact or claim.family is Family.ALL:
            assert makespan == optimum, (golden.name, rules)
    for rules, required in refused.items():
        least = golden.min_budget[rules]
        assert required >= least
        if speaks_of(golden, rules):
            assert (golden.optimum[rules], required) == (None, least)


@both
def test_short_golden_chains(formulation: Formulation) -> None:
    for golden in ALL:
        if len(golden.profile) <= SHORT:
            agrees_with_golden(formulation, golden)


@both
@pytest.mark.parametrize(
    "golden",
    [golden for golden in ALL if len(golden.profile) > SHORT],
    ids=lambda golden: golden.name,
)
@pytest.mark.long
def test_longer_golden_chains(formulation: Formulation, golden: GoldenOptions) -> None:
    agrees_with_golden(formulation, golden)


def test_conditions_are_those_of_the_golden_chains() -> None:
    """Where single sweeps are known to be optimal, the claim is about all schedules.

    Not of super-stages: option 0, which those chains do not have, is there and too large to use.
    """
    for golden in ALL:
        if "uses_super" not in golden.facts:
            for rules in Discards:
                claimed = is_complete(golden.profile, rules)
                assert claimed == speaks_of(golden, rules), (golden.name, rules)


def agrees_with_search(
    profile: ChainProfile, rules: Discards, slack: int, formulation: Formulation
) -> None:
    """The optimum of exhaustive search, or, of a narrower family, nothing faster."""
    method = formulation(discards=rules)
    budget = search.least_budget(profile, discards=rules) + slack
    optimum = search.optimum(profile, budget, discards=rules).makespan
    try:
        claim = method(profile, budget)
    except InfeasibleBudgetError as error:
        assert error.required > budget  # noqa: PT017 - most draws do not raise
        assert not is_complete(profile, rules)
        return
    makespan = certified(profile, budget, claim)
    assert makespan >= optimum
    assert makespan == optimum or claim.family is not Family.ALL


@both
@settings(max_examples=40)
@given(
    profile=chains(max_stages=3, families=OPTION_FAMILIES), rules=RULES, slack=st.integers(0, 20)
)
def test_small_chains_are_those_of_exhaustive_search(
    formulation: Formulation, profile: ChainProfile, rules: Discards, slack: int
) -> None:
    agrees_with_search(profile, rules, slack, formulation)


@both
@settings(max_examples=150)
@given(
    profile=chains(max_stages=4, families=OPTION_FAMILIES), rules=RULES, slack=st.integers(0, 20)
)
@pytest.mark.long
def test_more_chains_are_those_of_exhaustive_search(
    formulation: Formulation, profile: ChainProfile, rules: Discards, slack: int
) -> None:
    agrees_with_search(profile, rules, slack, formulation)


@both
def test_least_budgets_count_the_environments_that_are_there(formulation: Formulation) -> None:
    for chain, least in CHAINS_AND_LEAST_BUDGETS:
        with pytest.raises(InfeasibleBudgetError) as refusal:
            formulation()(chain, least - 1)
        assert refusal.value.required == least


@both
@settings(max_examples=25)
@given(profile=chains(max_stages=4, families=(ENVIRONMENTS,)), slack=st.integers(-1, 20))
def test_environments_count_as_in_the_dynamic_program(
    formulation: Formulation, profile: ChainProfile, slack: int
) -> None:
    """All that the dynamic program has fits, and the simulator lets nothing smaller through."""
    least = least_budget(profile)
    budget = max(0, least + slack)
    try:
        makespan = certified(profile, budget, formulation()(profile, budget))
    except InfeasibleBudgetError as error:
        assert budget < error.required <= least  # noqa: PT017 - most draws do not raise
        return
    if slack >= 0:
        claim = DP()(profile, budget)
        assert makespan <= claim.makespan
        assert build(profile, budget).encode(claim.schedule) is not None


@settings(max_examples=40)
@given(
    profile=chains(max_stages=5, families=OPTION_FAMILIES), rules=RULES, slack=st.integers(-2, 20)
)
def test_the_two_solvers_agree_and_have_all_that_the_dynamic_program_has(
    profile: ChainProfile, rules: Discards, slack: int
) -> None:
    """Infeasible is never said at the program's least budget or above."""
    budget = max(0, least_budget(profile) + slack)
    by_mip = answer(MIP(discards=rules), profile, budget)
    assert answer(CPSAT(discards=rules), profile, budget) == by_mip
    if slack >= 0:
        kind, makespan = by_mip
        assert kind == "optimum"
        assert makespan <= DP()(profile, budget).makespan
