"""Errors in the dynamic programs and combinatorial algorithms."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "dp/chain/kernels.py",
        "limit.overhead - lines[priced_at]",
        "limit.overhead - lines[0]",
        "agreement/test_options_dp.py::test_compiled_code_equals_numpy",
    ),
    Mutant(
        "dp/chain/kernels.py",
        "front.overhead[i] + price * front.memory[i]",
        "front.overhead[i] + 2 * price * front.memory[i]",
        "agreement/test_dp_engines.py::test_compiled_optimum_equals_numpy_and_the_dense_table",
    ),
    Mutant(
        "dp/chain/kernels.py",
        "ends.priced[end] + ends.price * saved + extra <= most",
        "ends.priced[end] + 2 * ends.price * saved + extra <= most",
        "agreement/test_options_dp.py::test_compiled_code_equals_numpy",
    ),
    Mutant(
        "dp/forward_costs.py",
        "if again is first and not buffers:",
        "if again is first:",
        "agreement/test_options_dp.py"
        "::test_buffers_count_in_later_runs_that_cost_what_first_ones_do",
    ),
    Mutant(
        "dp/forward_costs.py",
        "made - saved)",
        "made)",
        "agreement/test_options_dp.py::test_least_budgets_count_the_environments_that_are_there",
    ),
    Mutant(
        "dp/recursion.py",
        "fresh=arrays.fresh + np.triu(np.subtract.outer(-before[:-1], -before))",
        "fresh=arrays.fresh",
        "agreement/test_options_dp.py::test_least_budgets_count_the_environments_that_are_there",
    ),
    Mutant(
        "dp/forward_costs.py",
        "forward_need = arrays.saved + arrays.forward_overhead",
        "forward_need = arrays.saved",
        "agreement/test_dp.py::"
        "test_persistent_optimum_of_golden_chains[dp-K3_lemma44_fails_delta_gt_a@2]",
    ),
    Mutant(
        "dp/forward_costs.py",
        "backward_need = arrays.saved + arrays.backward_overhead + arrays.gradients",
        "backward_need = arrays.saved + arrays.gradients",
        "agreement/test_dp.py::test_persistent_optimum_of_golden_chains[dp-table2@9000]",
    ),
    Mutant(
        "dp/recursion.py",
        "return -(-sizes // unit) if up else sizes // unit",
        "return sizes // unit if up else -(-sizes // unit)",
        "agreement/test_dp.py::test_coarse_slots_bracket_the_optimum[table2@9000]",
    ),
    Mutant(
        "dp/table.py",
        "later = self.overhead(k, t, m - int(recursion.fresh[s, k]))",
        "later = self.overhead(k, t, m - int(recursion.activation[k]))",
        "agreement/test_skips.py::test_schedules_are_read_off_the_dense_table_too",
    ),
    Mutant(
        "dp/table.py",
        "start = max(shift, floor)",
        "start = shift",
        "agreement/test_dp.py::test_persistent_optimum_of_golden_chains",
    ),
    Mutant(
        "dp/step_functions.py",
        "if steps.memory[middle] + steps.shift <= m:",
        "if steps.memory[middle] + steps.shift < m:",
        "unit/test_bucketed_envelope.py::test_envelope_equals_sums_merged_one_after_another[1]",
    ),
    Mutant(
        "problems/binomial.py",
        "_reach(slots, repeats - 2), stages",
        "_reach(slots, repeats - 1), stages",
        "agreement/test_revolve.py::test_equal_to_the_dynamic_program_with_all_slot_counts[4]",
    ),
    Mutant(
        "dp/revolve.py",
        "backward = 2 * stage.gradient_bytes + stage.backward_overhead_bytes",
        "backward = stage.gradient_bytes + stage.backward_overhead_bytes",
        "agreement/test_revolve.py::test_equal_to_the_dynamic_program_with_all_slot_counts[2]",
    ),
    Mutant(
        "dp/revolve.py",
        "is_exact = stages == 1 or free < stage.saved_bytes",
        "is_exact = stages == 1 or free < 2 * stage.saved_bytes",
        "unit/test_revolve.py::test_bound_is_modest_where_saved_data_of_two_stages_fits",
    ),
    Mutant(
        "dp/free_discards/sizes.py",
        "held[: skip.first, (skip.first <= stage) & (stage < skip.last)] += skip.bytes",
        "pass",
        "agreement/test_free_discards.py::test_what_held_saved_data_pass_on_takes_memory",
    ),
    Mutant(
        "dp/free_discards/sizes.py",
        "freed.append(np.repeat(own[s] + more, len(options)))",
        "freed.append(np.repeat(own[s] + 0 * more, len(options)))",
        "agreement/test_free_discards.py::test_it_equals_the_recursion_on_sets_of_tensors",
    ),
    Mutant(
        "problems/ordered_no_wait.py",
        "            forward.ends[-1] + backward.ends[-1], forward.move_ends[-1]",
        "            forward.ends[-1], backward.ends[-1], forward.move_ends[-1]",
        "agreement/test_offload.py::test_golden_optima_of_ordered_no_wait[pub055]",
    ),
    Mutant(
        "problems/ordered_no_wait.py",
        "end = max(end, forward.ends[j] + back)",
        "end = max(end, back)",
        "agreement/test_fluid_plans.py::test_no_way_back_is_too_early_or_too_late",
    ),
    Mutant(
        "problems/ordered_no_wait.py",
        "max(end, forward.ends[i] + backward.when_moved(late))",
        "max(end, backward.when_moved(late))",
        "agreement/test_fluid_plans.py::test_no_way_back_is_too_early_or_too_late",
    ),
    Mutant(
        "problems/ordered_no_wait.py",
        "max(end, forward.when_moved(need_backward) + backward.ends[i])",
        "max(end, backward.ends[i])",
        "agreement/test_fluid_plans.py::test_no_way_back_is_too_early_or_too_late",
    ),
    Mutant(
        "dp/join/sizes.py",
        "[*(replace(recursion, first=recursion.again) for recursion in alone[:-1]), alone[-1]]",
        "alone",
        "agreement/test_join_options.py::test_program_is_the_optimum_of_its_family",
    ),
    Mutant(
        "dp/join/kernels.py",
        "if p == values.shape[0]:  # the tail has not been cut: nothing ahead has run",
        "if p > 0:",
        "agreement/test_join_options.py::test_program_is_the_optimum_of_its_family",
    ),
    Mutant(
        "dp/join/half_sums.py",
        "going += shared.bytes * (given[:, :-1] & due[:, 1:])",
        "going += shared.bytes * (given & due)[:, 1:]",
        "agreement/test_join_options.py::test_program_is_the_optimum_of_its_family",
    ),
    Mutant(
        "dp/join/kernels.py",
        "aside = parts.overheads[parts.row[case, s, e]]",
        "aside = parts.overheads[parts.row[sizes.case[j, 0], s, e]]",
        "agreement/test_join_options.py::test_program_is_the_optimum_of_its_family",
    ),
    Mutant(
        "dp/join/lower_bound.py",
        "return [slots - t + 2 - held_then",
        "return [slots - t + 1 - held_then",
        "paper/test_join_figures.py::test_waterfilling_is_exact_for_a_single_chain",
    ),
)
