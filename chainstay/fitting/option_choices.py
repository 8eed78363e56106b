"""Options of stages on their way into plan files and out of them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from chainstay.plans import OptionChoice, Plan
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.option_costs import ChosenOption
from chainstay.runtime.options.selection import Selection


def chosen_options(
    plan: Plan, profile: ChainProfile | JoinProfile
) -> dict[tuple[int, int], ChosenOption]:
    """Return the options that the plan's schedule uses, by stage and number."""
    found: dict[tuple[int, int], ChosenOption] = {}
    stages = profile.all_stages if isinstance(profile, JoinProfile) else profile.stages
    for choice in plan.choices:
        option = stages[choice.stage].options[choice.option - 1]
        selection = Selection(
            kept_bytes=option.saved_bytes,
            replay_time=0,
            replayed=frozenset(choice.replayed),
            redrawn=frozenset(choice.redrawn),
        )
        found[choice.stage, choice.option] = ChosenOption(selection, option.stages)
    return found


def choices_of(planned: Planned) -> Iterator[OptionChoice]:
    """Yield the options that a plan uses."""
    for (stage, number), option in sorted(planned.options.items(), key=itemgetter(0)):
        selection = option.selection
        yield OptionChoice(
            stage=stage,
            option=number,
            replayed=tuple(sorted(selection.replayed)),
            redrawn=tuple(sorted(selection.redrawn)),
        )
