"""The records of each stage of a join in the program by phases.

A *record* is what ``Fa`` saves under one option. Where the backward's time depends on whether
the stage ran for the first time, a record of phase 0 and one of a later phase are two.
"""

from __future__ import annotations

from typing import NamedTuple

from chainstay.profiles import Stage, StageOption
from chainstay.profiles.stage import undominated


class PhaseRecord(NamedTuple):
    """Data that ``Fa`` of a stage saves under an option, and the phases that can make it.

    Attributes:
        number: The option's number in `Stage.all_options`.
        option: The option.
        phases: The phases in which ``Fa`` can make this record.
        backward_time: What the stage's backward takes from it, in ns.
    """

    number: int
    option: StageOption
    phases: range
    backward_time: int


def records(stage: Stage, phases: int) -> list[PhaseRecord]:
    """Return the records of a stage, without those of options that another replaces."""
    options, found = stage.all_options, list[PhaseRecord]()
    for number in undominated(options):
        option = options[number]
        first, again = (run.backward_time for run in option.runs)
        if first == again:
            found.append(PhaseRecord(number, option, range(phases), first))
        else:
            found.append(PhaseRecord(number, option, range(1), first))
            found.append(PhaseRecord(number, option, range(1, phases), again))
    return found
