"""Errors in what judges the solvers: the simulators and the exhaustive searches."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "validation/chain_memory.py",
        "self.environments[stage] -= self.profile.stages[stage].random_bytes",
        "pass",
        "unit/test_simulate_options.py::"
        "test_buffers_of_an_environment_stay_to_the_backward_random_states_to_the_last_run",
    ),
    Mutant(
        "validation/search_memory.py",
        "own_bytes=own_bytes + beside,",
        "own_bytes=own_bytes,",
        "agreement/test_options_dp.py::test_least_budgets_count_the_environments_that_are_there",
    ),
    Mutant(
        "validation/chain_memory.py",
        "during_bytes = self.stored_bytes() + self.profile.gradient_bytes(stage) - passed_on",
        "during_bytes = self.stored_bytes() - passed_on",
        "unit/test_simulate.py::test_replay_digit_by_digit",
    ),
    Mutant(
        "validation/chain_memory.py",
        "during_bytes = self.stored_bytes() + self.profile.gradient_bytes(stage) - passed_on",
        "during_bytes = self.stored_bytes() + self.profile.gradient_bytes(stage)",
        "unit/test_skips.py::test_tensor_counts_once",
    ),
    Mutant(
        "validation/chain_memory.py",
        "return own + self._skip_bytes(in_saved - self._skips_in_activations())",
        "return own + self._skip_bytes(in_saved)",
        "unit/test_skips.py::test_tensor_counts_once",
    ),
    Mutant(
        "validation/chain_memory.py",
        "        self._remove(record)\n        self.activations.difference_update(record.stages)",
        "        self._remove(record)",
        "unit/test_simulate.py::test_replay_digit_by_digit",
    ),
    Mutant(
        "validation/simulate.py",
        "peak_bytes = max(snapshot.during_bytes for",
        "peak_bytes = max(snapshot.after_bytes for",
        "unit/test_simulate.py::test_replay_digit_by_digit",
    ),
    Mutant(
        "validation/chain_memory.py",
        "return stage in self.activations or (record is not None and record.last == stage - 1)",
        "return stage in self.activations",
        "unit/test_simulate.py::test_replay_digit_by_digit",
    ),
    Mutant(
        "validation/chain_memory.py",
        "return bool(new)",
        "return len(new) == len(stages)",
        "unit/test_simulate_options.py::test_a_record_of_several_stages_is_first_if_one_of_them_is",
    ),
    Mutant(
        "validation/chain_memory.py",
        "if stage in self.records and not self.profile.is_plain:",
        "if stage == op.stage in self.records and not self.profile.is_plain:",
        "unit/test_simulate_options.py::test_refused_operations",
    ),
    Mutant(
        "validation/chain_memory.py",
        "if record is not None and len(record.stages) > 1:",
        "if record is not None and len(record.stages) > 2:",
        "unit/test_simulate_options.py::test_refused_operations",
    ),
    Mutant(
        "validation/chain_memory.py",
        "is_bound = stage == record.first and record.option.needs_input",
        "is_bound = stage == record.first",
        "unit/test_simulate_options.py::test_an_option_that_needs_no_input_keeps_none",
    ),
    Mutant(
        "validation/chain_memory.py",
        "if op.stage < skip.first <= last + 1 <= skip.last",
        "if op.stage + 1 == skip.first <= last + 1 <= skip.last",
        "agreement/test_options_referee.py::"
        "test_search_and_simulator_accept_the_same_of_a_chain_with_everything",
    ),
    Mutant(
        "validation/search.py",
        "is_first = keep.stages & self._records.counted & ~has_run != 0",
        "is_first = (1 << i) & self._records.counted & ~has_run != 0",
        "agreement/test_options_referee.py::"
        "test_search_and_simulator_accept_the_same_of_a_chain_with_everything",
    ),
    Mutant(
        "validation/search.py",
        "if not stored.closed >> i & 1:",
        "if True:",
        "agreement/test_options_referee.py::"
        "test_search_and_simulator_accept_the_same_of_a_chain_with_everything",
    ),
    Mutant(
        "validation/search_memory.py",
        "if skip.last >= end and i < skip.first <= end:",
        "if i < skip.first <= end:",
        "agreement/test_options_referee.py::"
        "test_search_and_simulator_accept_the_same_of_a_chain_with_everything",
    ),
    Mutant(
        "validation/persistent_search.py",
        "following = op.stage + 1 if goes_on else 0",
        "following = 0",
        "agreement/test_options_referee.py::"
        "test_a_second_sweep_can_need_less_than_the_family_of_the_theorem",
    ),
    Mutant(
        "validation/persistent_search.py",
        "if is_bound or state.protected >> op.stage + (not drops):",
        "if is_bound or state.protected >> op.stage + 1:",
        "agreement/test_options_referee.py::test_optima_of_short_golden_chains",
    ),
    Mutant(
        "validation/offload/simulate.py",
        "need += profile.gradients[i + 1] * (i == len(profile) - 1)",
        "need += 0",
        "unit/test_transfers.py::test_every_size_counts_once_at_its_time",
    ),
    Mutant(
        "validation/offload/simulate.py",
        "lambda: j in self.left and j in self.used and self._is_link_free(op),",
        "lambda: j in self.left and j in self.used,",
        "unit/test_transfers.py::test_latency_and_two_directions_by_hand",
    ),
    Mutant(
        "validation/event_machine.py",
        "while not (is_ready() and self.memory + need <= self.budget):",
        "while not (is_ready() and self.memory + need <= self.budget + 1):",
        "unit/test_transfers.py::test_too_little_memory_is_refused",
    ),
    Mutant(
        "validation/event_machine.py",
        "has_room = self.held + self.moved_bytes(op) <= self.link.room",
        "has_room = True",
        "unit/test_host_limits.py::"
        "test_a_place_on_the_host_is_free_when_the_last_prefetch_has_ended",
    ),
    Mutant(
        "validation/join/simulate.py",
        "added += branch.gradient_bytes(len(branch))",
        "added = branch.gradient_bytes(len(branch))",
        "unit/test_join.py::test_bytes_of_every_operation_by_hand",
    ),
    Mutant(
        "validation/join/simulate.py",
        "is_gone = stage == 0 and j is not None and not self.keep[j]",
        "is_gone = stage == 0 and j is not None",
        "unit/test_join.py::test_kept_gradients_stay",
    ),
    Mutant(
        "validation/join/simulate.py",
        "added += sum(size for n, size in self._half_summed().items() if n not in half)",
        "added += 0",
        "unit/test_runtime_joins.py::"
        "test_a_gradient_is_half_summed_from_its_first_backward_through_its_last",
    ),
    Mutant(
        "validation/join/simulate.py",
        "is_first = (j, stage) not in self.has_run",
        "is_first = True",
        "agreement/test_join_options.py::test_kinds_of_runs_by_hand",
    ),
    Mutant(
        "validation/hybrid/simulate.py",
        "gone = (self.released & self.ready) - self.reading - self.sending",
        "gone = (self.released & self.ready) - self.reading",
        "unit/test_hybrid.py::test_whole_transfers_free_memory_when_they_end",
    ),
    Mutant(
        "validation/hybrid/simulate.py",
        "        self.memory -= self.overhead\n",
        "",
        "agreement/test_hybrid.py::test_whole_transfers_reach_the_golden_integral_optimum[ppub00]",
    ),
    Mutant(
        "validation/hybrid/simulate.py",
        "for item in (self.forgotten & self.host) - self.fetching:",
        "for item in self.forgotten & self.host:",
        "unit/test_host_limits.py::test_an_offload_waits_for_its_place",
    ),
)
