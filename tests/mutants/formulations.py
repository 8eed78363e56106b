"""Errors in the mixed-integer and constraint programs."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "formulations/chain/phases.py",
        "stage, later = self.profile.stages[i], k if i >= j else k - 1",
        "stage, later = self.profile.stages[i], k - 1",
        "agreement/test_options_formulations.py::test_least_budgets_count_the_environments_that_are_there",
    ),
    Mutant(
        "formulations/chain/constraints.py",
        "return stored.equals(left) if phases.discards is Discards.TABLE1 else stored <= left",
        "return stored <= left",
        "agreement/test_mip_chain.py::test_golden_optima[table1-table2@9000]",
    ),
    Mutant(
        "formulations/chain/constraints.py",
        ">= phases.used(k, needing)",
        ">= 0 * phases.used(k, needing)",
        "unit/test_formulation_chain.py::"
        "test_without_a_sentence_the_optimum_is_too_good_to_be_true[backward_needs_its_input]",
    ),
    Mutant(
        "formulations/chain/phases.py",
        "return gradients - sum(passed_on) + record",
        "return gradients + record",
        "agreement/test_skips.py::"
        "test_encoded_schedules_are_decoded_and_counted_to_the_byte[table1]",
    ),
    Mutant(
        "formulations/chain/phases.py",
        "return self._turn_memory(k, j) + self.kept_cost(k, j, self._overhead)",
        "return self._turn_memory(k, j) + 0 * self.kept_cost(k, j, self._overhead)",
        "unit/test_formulation_chain.py::"
        "test_without_a_sentence_the_optimum_is_too_good_to_be_true[forward_needs_its_input]",
    ),
    Mutant(
        "formulations/chain/formulation.py",
        "for k in range(j, n)\n    )",
        "for k in range(j + 1, n)\n    )",
        "agreement/test_mip_chain.py::test_golden_optima[table1-table2@9000]",
    ),
    Mutant(
        "formulations/integer_program.py",
        "return self.limit is not None and total > self.limit",
        "return self.limit is not None and total > self.limit + 1",
        "unit/test_formulation_mip.py::"
        "test_a_byte_too_little_that_nothing_can_change_is_infeasible[1099511627777]",
    ),
    Mutant(
        "formulations/program_by_cpsat.py",
        "model.add(variables[key] == linear(expression))",
        "model.add(variables[key] >= linear(expression))",
        "unit/test_formulation_programs.py::"
        "test_an_abbreviation_means_what_it_stands_for[solve_by_cpsat]",
    ),
    Mutant(
        "formulations/chain/cuts.py",
        'phases.total("saved_stored", k - 1, [record]) >= phases.recorded(k, [record])',
        'phases.total("saved_stored", k - 1, [record]) >= 2 * phases.recorded(k, [record])',
        "agreement/test_cpsat_chain.py::test_golden_optima[table1-table2@9000]",
    ),
    Mutant(
        "formulations/chain/phases.py",
        "quantity(record.costs.run(first=self._is_first(k)))",
        "quantity(record.costs.run(first=not self._is_first(k)))",
        "agreement/test_options_formulations.py::test_short_golden_chains[MIP]",
    ),
    Mutant(
        "formulations/chain/phases.py",
        "gradient = self._units(self.profile.gradient_bytes(k + 1)) * (1 - self.is_joined(k))",
        "gradient = self._units(self.profile.gradient_bytes(k + 1))",
        "unit/test_formulation_options.py::test_phases_that_a_record_skips_hold_no_gradient",
    ),
    Mutant(
        "profiles/stage.py",
        "needs = [option.saved_bytes, option.saved_bytes + option.backward_overhead_bytes]",
        "needs = [option.saved_bytes]",
        "unit/test_formulation_options.py::test_options_that_never_pay_are_left_out",
    ),
    Mutant(
        "problems/exactness.py",
        "return run.time >= sum(cost.time for cost in dropped.values()) and all(",
        "return all(",
        "unit/test_formulation_options.py::test_every_option_has_to_meet_the_conditions",
    ),
    Mutant(
        "problems/exactness.py",
        "option.saved_bytes + run.overhead_bytes\n",
        "option.saved_bytes + dropped[j].overhead_bytes\n",
        "unit/test_formulation_options.py::test_every_option_has_to_meet_the_conditions",
    ),
    Mutant(
        "formulations/chain/phases.py",
        "return first * made + (again - first) * (self.runs(k, j) - 1)",
        "return first * made",
        "unit/test_formulation_options.py::"
        "test_what_runs_twice_in_the_first_phase_runs_first_only_once",
    ),
    Mutant(
        "formulations/highs_backend.py",
        "if is_infeasible or status == highspy.HighsStatus.kError:",
        "if status == highspy.HighsStatus.kError:",
        "unit/test_backends.py::test_infeasible_is_not_believed_of_the_presolve_alone",
    ),
    Mutant(
        "formulations/offload/formulation.py",
        "formulation.model.leaves[j] >= formulation.end(j - 1) for j in formulation.movable if j",
        "formulation.model.leaves[j] >= formulation.model.start[j - 1] "
        "for j in formulation.movable if j",
        "unit/test_formulation_offload.py::test_every_sentence_about_the_host_is_needed[memory]",
    ),
    Mutant(
        "formulations/offload/formulation.py",
        "model.leaves[j] + formulation.moving(j) * model.moves[j],",
        "model.leaves[j],",
        "agreement/test_offload.py::test_golden_optima_of_whole_transfers_by_mip[pub007]",
    ),
    Mutant(
        "formulations/cpsat/hybrid.py",
        "model.add(until >= start + length).only_enforce_if(comes)",
        "model.add(until >= start).only_enforce_if(comes)",
        "agreement/test_hybrid_exact.py::test_host_memory_is_held_until_the_way_back_ends",
    ),
    Mutant(
        "formulations/integer_program.py",
        "return self.limit is not None and total > self.limit",
        "return self.limit is not None and total >= self.limit",
        "agreement/test_join.py::test_mip_is_the_optimum[3-1@5]",
    ),
)
