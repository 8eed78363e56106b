"""Random chains whose stages have options, costs by kind of run, and options of several stages."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final, NamedTuple

from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.verify.chain_instances import random_budget, random_chain

OPTION_FAMILIES: Final = (
    "options",  # up to two more ways to keep a stage, some of which need no input
    "runs",  # first and later runs, kept and dropped, cost what they like
    "super-stages",  # options that keep two or three stages
    "mixed",  # all of that
)
ENVIRONMENTS: Final = "environments"
"""The family of all of that with buffers and random states, which some methods do not count."""
WITH_LINKS: Final = "with links"
"""The family of options that a chain with transfers takes: of one stage each, with its input."""


def random_chain_with_options(seed: int, number: int) -> ChainProblem:
    """Return instance `number` of `seed`: a chain with options and a tight to ample budget.

    Example:
        >>> random_chain_with_options(1, 7).profile.is_plain
        False
    """
    draw = random.Random(f"chainstay options {seed} {number}")  # noqa: S311  # reproducible, no secret
    plain = random_chain(seed, number).profile
    profile = with_options(draw, plain, draw.choice((*OPTION_FAMILIES, ENVIRONMENTS)))
    return ChainProblem(profile, random_budget(draw, profile))


def with_options(draw: random.Random, profile: ChainProfile, family: str) -> ChainProfile:
    """Return `profile` with options and costs by kind of run.

    `family` is one of `OPTION_FAMILIES`, `ENVIRONMENTS`, or `WITH_LINKS`.
    """
    instance = _OptionDraw(draw, profile, family)
    return replace(profile, stages=tuple(map(instance.stage, range(len(profile)))))


class _OptionDraw(NamedTuple):
    """The options of one chain, drawn one after another."""

    draw: random.Random
    profile: ChainProfile
    family: str

    def stage(self, i: int) -> Stage:
        """Return stage i with options, and with costs by kind of run where the family has them."""
        stage = self.profile.stages[i]
        options = tuple(self._option(i) for _ in range(self.draw.randint(i == 0, 2)))
        if self.family == ENVIRONMENTS:
            largest = max(stage.output_bytes, 3)
            environment = self.draw.choice([0, self.draw.randint(0, largest)])
            random_bytes = self.draw.choice([0, self.draw.randint(0, environment), environment])
            stage = replace(stage, environment_bytes=environment, random_bytes=random_bytes)
        if self.family not in ("runs", "mixed", ENVIRONMENTS):
            return replace(stage, options=options)
        kept = stage.all_options[0].first
        dropped = replace(kept, backward_time=0)
        return replace(
            stage,
            options=options,
            first=self._changed(kept),
            again=self._changed(kept),
            dropped_first=self._changed(dropped),
            dropped_again=self._changed(dropped),
            needs_input=self._needs_input(),
        )

    def _option(self, i: int) -> StageOption:
        """Return an option that saves less than its stages do and takes longer, or anything."""
        span = 1
        if self.family in ("super-stages", "mixed", ENVIRONMENTS):
            span = min(self.draw.randint(1, 3), len(self.profile) - i)
        covered = self.profile.stages[i : i + span]
        made = sum(
            skip.bytes for skip in self.profile.skips if i < skip.first <= i + span <= skip.last
        )
        output, saved = covered[-1].output_bytes, sum(stage.saved_bytes for stage in covered)
        time = sum(stage.forward_time for stage in covered)
        is_wild = self.draw.random() < 1 / 4
        least = made if is_wild else max(made, output)
        first = RunCost(
            time=self.draw.randint(0, time) if is_wild else time,
            overhead_bytes=self.draw.choice([stage.forward_overhead_bytes for stage in covered]),
            backward_time=sum(stage.backward_time for stage in covered)
            + self.draw.randint(0, time) * (not is_wild),
        )
        return StageOption(
            saved_bytes=self.draw.randint(least, max(least, saved)),
            backward_overhead_bytes=self.draw.randint(
                0, saved + covered[0].backward_overhead_bytes
            ),
            first=first,
            again=self._changed(first) if self.family in ("runs", "mixed", ENVIRONMENTS) else None,
            needs_input=self._needs_input(),
            stages=span,
        )

    def _needs_input(self) -> bool:
        return self.family not in ("options", "mixed", ENVIRONMENTS) or self.draw.random() < 3 / 4

    def _changed(self, run: RunCost) -> RunCost | None:
        """Return other costs of a run, each up to twice as large; None, as often."""
        if self.draw.random() < 1 / 2:
            return None
        return RunCost(
            time=self.draw.randint(0, 2 * run.time),
            overhead_bytes=self.draw.randint(0, 2 * run.overhead_bytes),
            backward_time=self.draw.randint(0, 2 * run.backward_time),
        )
