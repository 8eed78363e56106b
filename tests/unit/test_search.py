"""Exhaustive search: optima worked out by hand, and the simulator's word on what it finds."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError, UnknownMethodError
from chainstay.profiles import ChainProfile, Skip, Stage
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Family
from chainstay.validation import search
from chainstay.validation.chain_memory import ChainMemory, InvalidOperationError
from chainstay.validation.search import LARGEST_CHAIN, least_budget, optimum
from chainstay.validation.simulate import simulate
from chainstay.verify.chain_instances import with_skip
from golden_chains import GOLDEN, GoldenChain
from strategies import FAMILIES, chains

STAGE_KINDS = [kind for kind in OpKind if kind is not OpKind.TURN]
RULES = list(Discards)

# One stage, hence one schedule, Fa0 B0: the peak is in B0, 3 + 600 + 7_000+40 + 100_000.
ONE = ChainProfile(
    input_bytes=3,
    input_gradient_bytes=40,
    stages=(
        Stage(
            forward_time=1,
            backward_time=10,
            output_bytes=5,
            saved_bytes=600,
            gradient_bytes=7_000,
            forward_overhead_bytes=20_000,
            backward_overhead_bytes=100_000,
        ),
    ),
)

# Keep all: 1 + 100+50 + 10 = 161 in B1, time 2+3+5+7 = 17. Fc0 Fa1 B1 Fa0 B0: 1+10 + 50 + 10 = 71
# in B1 and 1 + 100 + 10+1 = 112 in B0, time 17 + 2. B0 is the same in every schedule.
TWO = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=1,
    stages=(
        Stage(forward_time=2, backward_time=7, output_bytes=10, saved_bytes=100, gradient_bytes=10),
        Stage(forward_time=3, backward_time=5, saved_bytes=50),
    ),
)

# Stages of saved data 100 and outputs 10, input 1. What must be held while B2 runs decides:
# saved 0, 1, 2 (301), time 111_111; a1, saved 1, 2 (211), F0 again, + 1; saved 1, 2 with a1
# dropped and made again by the second Fa0, only where discards are free (201), + 1; a1, a2,
# saved 2 (121), F0 and F1 again, + 11; a2, saved 2 (111), F0 twice and F1 once again, + 12.
THREE = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=tuple(
        Stage(forward_time=10**i, backward_time=10 ** (i + 3), output_bytes=10, saved_bytes=100)
        for i in range(3)
    ),
)
# Every term has its own digit.
DIGITS = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=1_000,
    stages=tuple(
        Stage(
            forward_time=10**i,
            backward_time=10 ** (i + 3),
            output_bytes=2 << i,
            saved_bytes=100 << i,
            gradient_bytes=2_000 << i,
            forward_overhead_bytes=100_000 << i,
            backward_overhead_bytes=1_000_000 << i,
        )
        for i in range(3)
    ),
)

# The same and two tensors that are part of several activations, of digits of their own.
DIGITS_AND_SKIPS = with_skip(
    with_skip(DIGITS, Skip(first=1, last=2, bytes=10**7, gradient_bytes=10**9)),
    Skip(first=0, last=1, bytes=10**8, gradient_bytes=10**10),
)

# A chain whose saved data may lose its input: 7 bytes suffice, 6 where discards are free.
FREE_NEEDS_LESS = ChainProfile(
    input_bytes=0,
    input_gradient_bytes=0,
    stages=(
        Stage(output_bytes=1, saved_bytes=2),
        Stage(output_bytes=1, forward_overhead_bytes=1, backward_overhead_bytes=1),
        Stage(output_bytes=3, saved_bytes=3, backward_overhead_bytes=3),
    ),
)

THREE_AS_A_FUNCTION_OF_BUDGET = [
    ("table1 tape free", 111, 111_123),
    ("table1 tape free", 120, 111_123),
    ("table1 tape free", 121, 111_122),
    ("table1 tape free", 200, 111_122),
    ("table1 tape", 201, 111_122),
    ("table1 tape", 210, 111_122),
    ("free", 201, 111_112),
    ("free", 210, 111_112),
    ("table1 tape free", 211, 111_112),
    ("table1 tape free", 300, 111_112),
    ("table1 tape free", 301, 111_111),
    ("table1 tape free", 10**9, 111_111),
]


@pytest.mark.parametrize("rules", RULES)
def test_one_stage_has_one_schedule(rules: Discards) -> None:
    claim = optimum(ONE, 107_643, discards=rules)
    assert (str(claim.schedule), claim.makespan) == ("Fa0 B0", 11)
    assert least_budget(ONE, discards=rules) == 107_643


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    ("budget", "text", "makespan"),
    [
        (112, "Fc0 Fa1 B1 Fa0 B0", 19),
        (160, "Fc0 Fa1 B1 Fa0 B0", 19),
        (161, "Fa0 Fa1 B1 B0", 17),
    ],
)
def test_two_stages(rules: Discards, budget: int, text: str, makespan: int) -> None:
    claim = optimum(TWO, budget, discards=rules)
    assert (str(claim.schedule), claim.makespan) == (text, makespan)
    assert least_budget(TWO, discards=rules) == 112


@pytest.mark.parametrize(
    ("rules", "budget", "makespan"),
    [
        (rules, budget, makespan)
        for all_rules, budget, makespan in THREE_AS_A_FUNCTION_OF_BUDGET
        for rules in all_rules.split()
    ],
)
def test_three_stages(rules: str, budget: int, makespan: int) -> None:
    assert optimum(THREE, budget, discards=rules).makespan == makespan
    assert least_budget(THREE, discards=rules) == 111


@pytest.mark.parametrize("rules", RULES)
def test_claim_is_proved_and_names_its_rules(rules: Discards) -> None:
    claim = optimum(TWO, 120, discards=rules)
    assert (claim.lower_bound, claim.family, claim.discards) == (19, Family.ALL, rules)


def test_rules_are_table1_unless_named() -> None:
    claim = optimum(THREE, 201)
    assert (claim.makespan, claim.discards) == (111_122, Discards.TABLE1)
    assert least_budget(FREE_NEEDS_LESS) == 7
    assert least_budget(FREE_NEEDS_LESS, discards="free") == 6


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("profile", "required"), [(ONE, 107_643), (TWO, 112), (THREE, 111)])
def test_infeasible_budget_names_the_least_one(
    rules: Discards, profile: ChainProfile, required: int
) -> None:
    text = rf"^no schedule of this {len(profile)}-stage chain fits in .+ is .*{required} bytes"
    with pytest.raises(InfeasibleBudgetError, match=text) as caught:
        optimum(profile, required - 1, discards=rules)
    assert (caught.value.budget, caught.value.required) == (required - 1, required)


def test_chain_too_long_is_refused() -> None:
    stage = Stage(forward_time=1, saved_bytes=1)
    chain = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(stage,) * 11)
    for search_it in (lambda: optimum(chain, 100), lambda: least_budget(chain)):
        with pytest.raises(InvalidProfileError, match="at most 10 stages, this one has 11"):
            search_it()


def test_longest_chain_is_accepted() -> None:
    stage = Stage(forward_time=1, saved_bytes=1)
    chain = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(stage,) * LARGEST_CHAIN)
    assert search.ChainTransitions(chain, Discards.TABLE1).profile is chain


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'apples', must be one of 'table1'"):
        optimum(TWO, 200, discards="apples")
    with pytest.raises(UnknownMethodError, match="discards is 'apples', must be one of 'table1'"):
        least_budget(TWO, discards="apples")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("chain", [c for c in GOLDEN if c.stages <= 5], ids=lambda c: c.name)
def test_golden_chain(chain: GoldenChain, rules: Discards) -> None:
    assert least_budget(chain.profile, discards=rules) == chain.min_budget[rules]
    expected = chain.optimum[rules]
    if expected is None:
        with pytest.raises(InfeasibleBudgetError, match=str(chain.min_budget[rules])):
            optimum(chain.profile, chain.budget, discards=rules)
    else:
        assert optimum(chain.profile, chain.budget, discards=rules).makespan == expected


@pytest.mark.parametrize(
    ("name", "optima"),
    [("K4", {"table1": 2, "tape": 3, "free": 2}), ("K5", {"table1": 2, "tape": 2, "free": 1})],
)
def test_three_rules_have_three_optima(name: str, optima: dict[str, int]) -> None:
    chain = next(chain for chain in GOLDEN if chain.name.startswith(name))
    found = {rules: optimum(chain.profile, chain.budget, discards=rules) for rules in optima}
    assert {rules: claim.makespan for rules, claim in found.items()} == optima


def test_forward_past_the_gradient_can_free_memory() -> None:
    saved, overheads, times = (3, 1, 3, 3), (0, 1, 0, 0), (100, 1, 1, 1)
    chain = ChainProfile(
        input_bytes=0,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=times[i],
                output_bytes=int(i < 3),
                saved_bytes=saved[i],
                forward_overhead_bytes=overheads[i],
            )
            for i in range(4)
        ),
    )
    # Fn1 Fn2 Fn3 carry a1 out of memory after B3, so that F0 runs three times instead of four.
    schedule = Schedule.parse("Fc0 Fn1 Fn2 Fa3 B3 Fc0 Fa1 Fn1 Fn2 Fn3 Fa2 B2 Fa0 B1 B0")
    replay = simulate(chain, schedule)
    assert (replay.makespan, replay.peak_bytes) == (308, 4)
    assert optimum(chain, 4).makespan == 308


@pytest.mark.long
@given(profile=chains(max_stages=4, families=FAMILIES), data=st.data())
@settings(max_examples=60, derandomize=True)
def test_found_schedules_replay_as_claimed(profile: ChainProfile, data: st.DataObject) -> None:
    for rules in RULES:
        least = least_budget(profile, discards=rules)
        budget = least + data.draw(st.integers(0, 60), label=f"slack under {rules}")
        claim = optimum(profile, budget, discards=rules)
        replay = simulate(profile, claim.schedule, discards=rules)
        assert replay.makespan == claim.makespan
        assert replay.peak_bytes <= budget


@pytest.mark.long
@given(profile=chains(max_stages=4, families=FAMILIES))
@settings(max_examples=60, derandomize=True)
def test_least_budget_is_the_threshold(profile: ChainProfile) -> None:
    for rules in RULES:
        least = least_budget(profile, discards=rules)
        claim = optimum(profile, least, discards=rules)
        assert simulate(profile, claim.schedule, discards=rules).peak_bytes == least
        with pytest.raises(InfeasibleBudgetError) as caught:
            optimum(profile, least - 1, discards=rules)
        assert caught.value.required == least


@given(profile=chains(max_stages=4, families=FAMILIES), slack=st.integers(0, 30))
@settings(max_examples=60, derandomize=True)
@pytest.mark.long
def test_freer_rules_are_never_worse(profile: ChainProfile, slack: int) -> None:
    budget = least_budget(profile) + slack
    free = optimum(profile, budget, discards="free").makespan
    assert free <= optimum(profile, budget).makespan
    least = {rules: least_budget(profile, discards=rules) for rules in RULES}
    assert least[Discards.FREE] <= min(least[Discards.TAPE], least[Discards.TABLE1])
    if least[Discards.TAPE] <= budget:
        assert free <= optimum(profile, budget, discards="tape").makespan


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("gradient", [1, 2, 3])
@pytest.mark.parametrize("chain", [DIGITS, DIGITS_AND_SKIPS], ids=["plain", "skips"])
def test_transitions_are_the_simulators(
    rules: Discards, gradient: int, chain: ChainProfile
) -> None:
    """From every state without a^n and without anything past the gradient."""
    searched = search.ChainTransitions(chain, rules)
    for activations, saved in product(range(min(2 << gradient, 8)), range(1 << gradient)):
        state = search.ChainState(gradient, activations, saved)
        if not searched._allows(state):
            continue
        found = {
            (str(step.ops[0]), step.after, step.time, step.bytes) for step in searched.steps(state)
        }
        accepted = set(accepted_by_simulator(chain, state, rules))
        needed = {
            (op, after, time, during_bytes)
            for op, after, time, during_bytes in accepted
            if op.startswith("D")
            or (int(op[-1]) < gradient and after != state and not _only_drops(op, state))
        }
        assert found <= accepted, state
        assert needed <= found, state


def _only_drops(op: str, state: search.ChainState) -> bool:
    """Whether `op` is an Fn whose output is stored already."""
    return op.startswith("Fn") and bool(state.activations >> int(op[-1]) + 1 & 1)


def accepted_by_simulator(
    profile: ChainProfile, state: search.ChainState, rules: Discards
) -> Iterator[tuple[str, search.ChainState, int, int]]:
    """All operations that the simulator accepts in `state`."""
    for kind, stage in product(STAGE_KINDS, range(len(profile))):
        op = Op(kind, stage)
        memory = _memory(profile, rules, _indices(state.activations), _indices(state.saved))
        memory.gradient = state.gradient
        with suppress(InvalidOperationError):
            cost = memory.apply(op)
            activations = sum(1 << index for index in memory.activations)
            saved = sum(1 << index for index in memory.records)
            after = search.ChainState(memory.gradient, activations, saved)
            yield str(op), after, cost.time, cost.during_bytes


def _memory(
    profile: ChainProfile, rules: Discards, activations: Iterable[int], saved: Iterable[int]
) -> ChainMemory:
    """Memory of a plain chain that has stored these activations, and records of these stages."""
    memory = ChainMemory(profile, rules, set(range(len(profile))))
    for stage in saved:
        memory.apply(Op(OpKind.FORWARD_KEEP_ALL, stage))
    memory.activations = set(activations)
    return memory


def _indices(mask: int) -> set[int]:
    return {index for index in range(mask.bit_length()) if mask >> index & 1}


@given(profile=chains(max_stages=3, families=FAMILIES), slack=st.integers(0, 10))
@settings(max_examples=40, derandomize=True)
@pytest.mark.long
def test_agrees_with_a_search_on_the_simulator_itself(profile: ChainProfile, slack: int) -> None:
    for rules in RULES:
        least = least_budget(profile, discards=rules)
        fastest = optimum(profile, least + slack, discards=rules).makespan
        assert fastest == fastest_by_replay(profile, least + slack, rules)
        assert fastest_by_replay(profile, least - 1, rules) is None


def fastest_by_replay(profile: ChainProfile, budget: int, rules: Discards) -> int | None:
    """Least makespan over everything the simulator itself accepts, state by state."""
    ops = [Op(kind, stage) for kind in STAGE_KINDS for stage in range(len(profile))]
    memory = ChainMemory(profile, rules)
    best = {_key(memory): 0}
    frontier = [(0, _key(memory))]
    while frontier:
        time, state = heapq.heappop(frontier)
        if state[0] == 0:
            return time
        for op in ops if time == best[state] else ():
            memory = _memory(profile, rules, state[1], state[2])
            memory.gradient = state[0]
            try:
                cost = memory.apply(op)
            except InvalidOperationError:
                continue
            after, end = _key(memory), time + cost.time
            if cost.during_bytes <= budget and end < best.get(after, end + 1):
                best[after] = end
                heapq.heappush(frontier, (end, after))
    return None


def _key(memory: ChainMemory) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return memory.gradient, tuple(sorted(memory.activations)), tuple(sorted(memory.records))
