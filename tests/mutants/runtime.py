"""Errors in what measures, cuts, plans and trains models."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_DEVICE: Final = "agreement/test_simulated_device.py::test_on_the_simulated_device"
_ON_DEVICE: Final = f"{_DEVICE}[cases_engine]"
_IN_PART: Final = "agreement/test_combined_training.py::test_what_is_kept_in_part_is_away_too"

MUTANTS: Final = (
    Mutant(
        "runtime/measures/measured.py",
        "    with MEASURING, random",
        "    with random",
        "abuse/test_threads.py::test_one_thread_measures_at_a_time",
    ),
    Mutant(
        "runtime/measures/option_costs.py",
        "is_large = count > 1 and saved * _LARGE > everything",
        "is_large = False",
        "unit/test_stage_options.py::test_of_spans_that_save_a_large_part_one_option_is_steady",
    ),
    Mutant(
        "runtime/options/option.py",
        "[-1 if is_large else 0 :]",
        "[: 1 if is_large else None]",
        "unit/test_stage_options.py::test_of_spans_that_save_a_large_part_one_option_is_steady",
    ),
    Mutant(
        "runtime/capture/dynamo.py",
        'return f"{told} {[c.answer(tensors) for c in conditions]}" if conditions else told',
        "return told",
        "agreement/test_conditions.py",
    ),
    Mutant(
        "runtime/capture/values/origins.py",
        "{*values, *(tensor.untyped_storage()._cdata for tensor in strided)}",
        "set(values)",
        "agreement/test_conditions.py",
    ),
    Mutant(
        "runtime/measures/costs.py",
        "(state for _, state in environment.random if state.device == device)",
        "(state for kind, state in environment.random if kind == device)",
        f"{_DEVICE}[cases_training]",
    ),
    Mutant(
        "runtime/measures/costs.py",
        "backward += self.left[last + 1]",
        "backward += 0",
        "agreement/test_fit_outputs.py::test_what_the_output_holds_of_the_graph_is_counted",
    ),
    Mutant(
        "runtime/measures/blocks/around_blocks.py",
        "Gradients.usual(state, self.device) for state",
        "Gradients.usual(state) for state",
        f"{_DEVICE}[cases_training]",
    ),
    Mutant(
        "runtime/measures/blocks/block_costs.py",
        "trace_chain(found, subject, given[len(observed) - 1])",
        "trace_chain(found, subject)",
        "agreement/test_fit_blocks.py::test_gradients_lie_as_the_code_behind_the_blocks_leaves_them",
    ),
    Mutant(
        "runtime/measures/boundary.py",
        "for index in ctx.made.lasting]",
        "for index in ()]",
        "agreement/test_fit_blocks.py::"
        "test_a_gradient_that_others_hold_counts_beside_a_block_that_frees_it",
    ),
    Mutant(
        "runtime/capture/cuts/crossings.py",
        "if with_counters or crossings.last[node] >= index:",
        "if True:",
        "unit/test_cutting.py::test_a_network_that_runs_twice_is_cut_within",
    ),
    Mutant(
        "runtime/stage/assumed_loss.py",
        "return cls(whole + _NUMBERS, 0, whole, given)",
        "return cls(_NUMBERS, 0, whole, given)",
        "agreement/test_assumed_losses.py",
    ),
    Mutant(
        "runtime/joins/costs.py",
        "AssumedLoss.of(layout for output in gradients for layout in output.layouts)",
        "AssumedLoss.of([])",
        "agreement/test_assumed_losses.py",
    ),
    Mutant(
        "runtime/measures/blocks/block_account.py",
        "max(max(backward.peak, giving) - saved",
        "max(backward.peak - saved",
        "agreement/test_assumed_losses.py",
    ),
    Mutant(
        "runtime/devices/accelerator.py",
        "        return time.perf_counter_ns()",
        "        return time.thread_time_ns()",
        f"{_DEVICE}[cases_use]",
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "        self._out.wait_event(computing.record_event())  # produced",
        "        pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "                self._out.wait_event(slot.after.end)",
        "                pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "        self._back.wait_event(computing.record_event())  # allocated: its earlier users "
        "are done",
        "        pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "        self._back.wait_event(_end_of(sent))",
        "        pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "        self._accelerator.current_stream().wait_event(_end_of(ticket))",
        "        pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/transfer/stream_engine.py",
        "        ticket.computing.wait_event(ticket.end)",
        "        pass",
        _ON_DEVICE,
    ),
    Mutant(
        "runtime/measures/account.py",
        "again=own + held[-1] + costs[index].again_bytes",
        "again=own + costs[index].again_bytes",
        "unit/test_runtime_accounting.py::test_any_schedule_may_run_every_stage_again",
    ),
    Mutant(
        "runtime/measures/account.py",
        "yield held + copied",
        "yield held",
        "unit/test_runtime_accounting.py::"
        "test_an_environment_lasts_from_the_first_run_to_the_last_and_buffers_to_the_backward",
    ),
    Mutant(
        "runtime/measures/account.py",
        "if runs[skip.first - 1] > 1)",
        "if runs[skip.first - 1] > 2)",
        "unit/test_runtime_accounting.py::test_what_the_caller_has_and_is_made_again_counts_twice",
    ),
    Mutant(
        "runtime/stage/states.py",
        "return sum({address_of(part): allocated_bytes(part) for part in parts}.values())",
        "return sum(map(allocated_bytes, parts))",
        "unit/test_runtime_states.py::test_copies_share_memory_where_the_originals_do",
    ),
    Mutant(
        "runtime/transfer/step_transfers.py",
        "return self.versions == tuple(map(_version_of, self.tensors))",
        "return True",
        "unit/test_runtime_promises.py::test_a_changed_checkpoint_is_noticed",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "capture.policy = self._offload_hook(step, state, shared)",
        "capture.policy = self._offload_hook(step, state, self.shared)",
        "agreement/test_combined_training.py::test_what_is_kept_in_part_is_away_too[normalized_case-26]",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "first.entered(self.shared)",
        "nullcontext()",
        "agreement/test_runtime_bit_for_bit.py::test_three_steps_are_equal",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "            if number in step.wanted:\n                self.checkpoints[number] =",
        "            if not step.is_last:\n                self.checkpoints[number] =",
        "agreement/test_runtime_peak_memory.py::test_prediction_covers_the_peak_within_a_tenth",
    ),
    Mutant(
        "runtime/transfer/movable_storage.py",
        "        if self._is_unread and self.ticket is not None:\n"
        "            self._engine.wait(self.ticket)",
        "        if self._is_unread and self.ticket is None:\n"
        "            self._engine.wait(self.ticket)",
        "unit/test_transfers_runtime.py::"
        "test_exceptions_leave_nothing_and_the_next_step_is_right[forward]",
    ),
    Mutant(
        "runtime/transfer/movable_storage.py",
        "            self._is_spoiled = version_of(self._tensor) != self._version\n"
        "            self._tensor = None",
        "            self._tensor = None",
        "unit/test_movable_storage.py::test_a_change_after_sending_is_noticed[True]",
    ),
    Mutant(
        "runtime/capture/operators.py",
        "            if value.requires_grad:",
        "            if False:",
        "agreement/test_fit_blocks.py::"
        "test_a_graph_that_writes_what_it_makes_into_an_argument_goes_by_blocks",
    ),
    Mutant(
        "runtime/capture/operators.py",
        "runs[1:-1]",
        "runs[1:-2]",
        "unit/test_host_values.py::test_two_threads_at_once_are_refused[DHD]",
    ),
    Mutant(
        "runtime/stage/lineage.py",
        "is_elsewhere = tensor.device.type != self.device.type",
        "is_elsewhere = False",
        "agreement/test_simulated_device.py::test_on_the_simulated_device[cases_host]",
    ),
    Mutant(
        "runtime/transfer/pool.py",
        "            begin = end\n",
        "            begin = 0\n",
        "unit/test_transfers_runtime.py::"
        "test_a_slot_of_several_pieces_holds_a_storage_in_their_order",
    ),
    Mutant(
        "runtime/transfer/pool.py",
        "if self.allocated_bytes + room > self.limit:",
        "if self.allocated_bytes > self.limit:",
        "unit/test_transfers_runtime.py::test_pool_reuses_and_evicts",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "isinstance(step, Stretch) and not self.held",
        "isinstance(step, Stretch)",
        "agreement/test_combined_training.py::test_what_kept_stages_read_is_let_go_too",
    ),
    Mutant(
        "runtime/transfer/cpu_engine.py",
        "            raise _again(own.error)",
        "            return",
        "unit/test_transfers_runtime.py::test_a_failing_copy_is_told_where_it_is_waited_for",
    ),
    Mutant(
        "runtime/transfer/transfer_plan.py",
        "        while (total := self.memory + need) > self.budget:",
        "        while (total := self.memory + need) > self.budget + need:",
        "unit/test_transfers_planning.py::test_waits_stand_just_where_memory_is_needed",
    ),
    Mutant(
        "runtime/transfer/transfer_plan.py",
        "need = max(need, growth + made + overhead)",
        "need = max(need, made + overhead)",
        "unit/test_transfers_planning.py::test_solvers_plans_run_within_the_budget[0-half]",
    ),
    Mutant(
        "runtime/joins/part_order.py",
        "return plain == other or (plain[:2] == other[:2][::-1] and plain[2:] == other[2:])",
        "return sorted(map(id, plain)) == sorted(map(id, other))",
        "unit/test_runtime_joins.py::test_a_parameter_used_in_turns_is_refused",
    ),
    Mutant(
        "runtime/execute/liveness.py",
        "if first_runs != list(range(shape.loss)):",
        "if sorted(first_runs) != list(range(shape.loss)):",
        "unit/test_runtime_joins.py::test_schedules_that_the_runtime_does_not_run_are_refused",
    ),
    Mutant(
        "runtime/execute/liveness.py",
        "                output_wanted=members[-1].output_wanted,\n                span=span,",
        "                output_wanted=members[-1].output_wanted,\n                span=1,",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again",
    ),
    Mutant(
        "runtime/execute/liveness.py",
        "        position += span\n",
        "        position += 1\n",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again",
    ),
    Mutant(
        "runtime/execute/liveness.py",
        "is_last=all(step.is_last for step in members),",
        "is_last=members[-1].is_last or members[0].is_first,",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again",
    ),
    Mutant(
        "runtime/execute/handles.py",
        "for handles in several for reference in handles.references]",
        "for handles in reversed(several) for reference in handles.references]",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again",
    ),
    Mutant(
        "runtime/stage/chain_stage.py",
        "return tuple([position for position in self.reads if position not in self.written])",
        "return self.reads",
        "unit/test_runtime_execute.py::test_every_use_gives_the_same_bits[use_autograd_grad-discards]",
    ),
    Mutant(
        "runtime/execute/environment.py",
        "for environment in reversed(several) for state in environment.random",
        "for environment in several for state in environment.random",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "        for environment in reversed(environments):",
        "        for environment in environments[:1]:",
        "agreement/test_fit_options.py::test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again[ResNet]",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        " or not option.code.graph.is_for(shared, settings.backends)",
        "",
        "agreement/test_fit_options.py::test_a_measured_chain_goes_by_its_plan_under_other_kernels",
    ),
    Mutant(
        "runtime/capture/recurrent_layers.py",
        "rate and layer < layers - 1",
        "rate and layer < layers",
        "agreement/test_fit_recurrent.py::test_layers_are_planned_one_by_one[RNN]",
    ),
    Mutant(
        "runtime/options/stage_run.py",
        "return saved, [*output, *gradients, *(state",
        "return saved, [*output, *(state",
        "agreement/test_operator_parts.py::test_parts_with_other_gradients_are_not_used",
    ),
    Mutant(
        "runtime/options/stage_run.py",
        "return saved == saved_by_nodes and all(",
        "return all(",
        "agreement/test_operator_parts.py::test_parts_that_save_something_else_are_not_used",
    ),
    Mutant(
        "runtime/options/stage_run.py",
        "        restore_random_states(random)\n",
        "",
        "agreement/test_operator_parts.py::test_a_mask_is_kept_in_a_quarter_of_the_noise",
    ),
    Mutant(
        "runtime/options/operator_parts.py",
        "scale, (key, -2, product_scale)",
        "scale, (key, -2, None)",
        "agreement/test_operator_parts.py::test_options_of_parts_train_as_plain[causal]",
    ),
    Mutant(
        "runtime/options/graph.py",
        "if composition.split is SplitLevel.WHOLE or run.is_faithful(device):",
        "if composition.split or run.is_faithful(device):",
        "agreement/test_operator_parts.py::test_parts_that_give_other_bits_are_not_used",
    ),
    Mutant(
        "runtime/devices/autocast.py",
        "self._made[id(weight)][1])",
        "self._made[id(weight)][1].clone())",
        "agreement/test_runtime_shared_memory.py::"
        "test_plain_training_under_autocast_needs_what_is_predicted",
    ),
    Mutant(
        "runtime/devices/autocast.py",
        'if not is_weight or kwargs.get("dtype") != self.dtype:',
        "if not is_weight:",
        "unit/test_copies_of_weights.py::test_other_casts_are_made_as_they_are_asked_for",
    ),
    Mutant(
        "runtime/devices/autocast.py",
        "torch.set_autocast_cache_enabled(False)",
        "pass",
        "unit/test_copies_of_weights.py::"
        "test_a_copy_is_made_once_and_has_a_node_of_its_own_in_each_run",
    ),
    Mutant(
        "runtime/measures/costs.py",
        "        total += memory.copied_bytes\n",
        "",
        "agreement/test_runtime_shared_memory.py::"
        "test_plain_training_under_autocast_needs_what_is_predicted",
    ),
    Mutant(
        "runtime/options/table.py",
        "    if has_outdated_copies(",
        "    if not has_outdated_copies(",
        "agreement/test_fit_autocast.py",
    ),
    Mutant(
        "runtime/stage/spans.py",
        "return not contains and span[0] <= last and first <= span[1]",
        "return span[0] <= last and first <= span[1]",
        "unit/test_spans.py",
    ),
    Mutant(
        "runtime/stage/spans.py",
        "if before > size < after and len(runs) > 1",
        "if before >= size < after",
        "unit/test_spans.py",
    ),
    Mutant(
        "runtime/capture/cuts/cut_points.py",
        "borders[end if is_better else cut] = None",
        "borders[cut] = None",
        "unit/test_cutting.py",
    ),
    Mutant(
        "runtime/stage/spans.py",
        "[cut.idle_bytes >= least for cut in cuts]",
        "[False for _ in cuts]",
        "agreement/test_idle_cuts.py",
    ),
    Mutant(
        "runtime/devices/kernel_watch.py",
        "supports_higher_order_operators = True",
        "supports_higher_order_operators = False",
        "agreement/test_idle_cuts.py",
    ),
    Mutant(
        "runtime/devices/kernel_watch.py",
        "                self.stance.close()",
        "                pass",
        "abuse/test_threads.py::test_looks_at_kernels_that_overlap_leave_torch_compile_as_it_was",
    ),
    Mutant(
        "runtime/measures/measured_chain.py",
        "        freed_bytes=measured.freed_bytes,\n",
        "",
        "agreement/test_idle_cuts.py::test_chains_of_modules_need_in_plain_training_what_is_predicted",
    ),
    Mutant(
        "runtime/measures/blocks/block_costs.py",
        "blocks=around.chain, freed_bytes=freed)",
        "blocks=around.chain)",
        "agreement/test_fit_blocks.py::test_what_no_backward_reads_is_gone_in_plain_training_by_blocks",
    ),
    Mutant(
        "runtime/execute/recompute.py",
        "                        state = part(state, self.shared)",
        "                        state, first = part(state, self.shared), state",
        "agreement/test_idle_cuts.py::"
        "test_stages_that_are_kept_together_let_go_what_the_first_one_reads",
    ),
    Mutant(
        "runtime/measures/costs.py",
        "            backward + self.standing + sums,",
        "            max(backward + self.standing + sums, 0),",
        "agreement/test_idle_cuts.py::"
        "test_what_only_later_stages_save_is_gone_when_a_backward_begins[Attention-shape1]",
    ),
    Mutant(
        "runtime/stage/idle_cuts.py",
        "if key not in held)",
        "if False)",
        "agreement/test_idle_cuts.py::"
        "test_what_only_later_stages_save_is_gone_when_a_backward_begins[TwoLosses-shape0]",
    ),
    Mutant(
        "runtime/capture/values/conditions.py",
        "    if called_name(node) in _NEVER_CAST:",
        "    if False:",
        "agreement/test_conditions.py::test_transformers_of_torch_are_graphs_whatever_their_mask_hides",
    ),
    Mutant(
        "runtime/stage/idle_cuts.py",
        "if stage.effects.changes_input\n",
        "if False\n",
        "agreement/test_idle_cuts.py::test_what_blocks_change_in_place_is_not_gone",
    ),
    Mutant(
        "runtime/stage/idle_cuts.py",
        "was_cheap or is_cheap",
        "False",
        "agreement/test_idle_cuts.py",
    ),
    Mutant(
        "runtime/options/graph.py",
        "all(0 < rate < 1 for rate in rates)",
        "all(0 <= rate < 1 for rate in rates)",
        "agreement/test_fit_options.py::test_what_was_seen_holds_for_some_numbers",
    ),
    Mutant(
        "runtime/options/graph.py",
        "all(map(is_arithmetic, node.users)):",
        "True:",
        "agreement/test_fit_options.py::test_numbers_that_change",
    ),
    Mutant(
        "runtime/options/graph.py",
        "return self._seen() == other._seen()",
        "return True",
        "agreement/test_fit_options.py::test_what_was_seen_holds_for_some_numbers",
    ),
    Mutant(
        "runtime/stage/staged_graph.py",
        "is_same = is_same and stage.effects.draws_random == before.effects.draws_random",
        "is_same = is_same and True",
        "agreement/test_fit_options.py::test_numbers_that_change",
    ),
    Mutant(
        "runtime/options/replay.py",
        "run.environment.require_unchanged(run.shared, run.names, needed)",
        "run.environment.require_unchanged(run.shared, run.names)",
        "agreement/test_fit_hooks.py::test_an_optimizer_inside_the_backward",
    ),
    Mutant(
        "runtime/options/replay.py",
        "        self._groups, self.stashes, self.hooks = [], [], None  # first",
        "        # first",
        "agreement/test_stage_options.py::test_nothing_is_left_without_a_garbage_collector",
    ),
    Mutant(
        "runtime/options/replay.py",
        "            self.hooks.__exit__(None, None, None)\n",
        "",
        "unit/test_stage_options.py::test_an_operator_that_fails_leaves_no_hooks",
    ),
    Mutant(
        "runtime/options/generator.py",
        "return [group]  # an operator changes it in place",
        "pass",
        "unit/test_replays_in_parts.py::test_what_is_changed_in_place_is_made_again_at_once",
    ),
    Mutant(
        "runtime/options/generator.py",
        "- handed_on >= least",
        ">= 0",
        "unit/test_replays_in_parts.py::test_where_as_much_would_be_handed_on_as_spared_all_is_made_again_at_once",
    ),
    Mutant(
        "runtime/options/generator.py",
        "if key[1] or key[0] not in again",
        "if key",
        "unit/test_replays_in_parts.py::test_what_is_needed_late_is_made_again_late",
    ),
    Mutant(
        "runtime/options/replay.py",
        "                    source.replay()",
        "                    pass",
        "unit/test_replays_in_parts.py::test_what_is_needed_late_is_made_again_late",
    ),
    Mutant(
        "runtime/options/generator.py",
        "number for number, pack in enumerate(graph.packs) if pack.saver in savers",
        "number for number, _ in enumerate(graph.packs)",
        "unit/test_stage_options.py::test_hooks_are_around_those_operators_alone_that_save_what_goes",
    ),
    Mutant(
        "runtime/options/special_operators.py",
        "torch.Tag.pointwise in tags_of(name)",
        "True",
        "unit/test_stage_options.py::test_products_are_replayed_with_gradients_on",
    ),
    Mutant(
        "runtime/options/replay.py",
        "value.detach() if isinstance(value, torch.Tensor) else value",
        "value",
        "agreement/test_stage_options.py::test_nothing_is_left_without_a_garbage_collector",
    ),
    Mutant(
        "runtime/options/replay.py",
        "self.found[self.mark, self.number] = tensor.detach()",
        "self.found[self.mark, self.number] = tensor",
        "agreement/test_stage_options.py::test_nothing_is_left_without_a_garbage_collector",
    ),
    Mutant(
        "runtime/options/replay.py",
        "if code.needs_graph:",
        "if code.needs_graph or run.environment.settings.autocast[0][1]:",
        "unit/test_stage_options.py::test_under_autocast_an_activation_is_made_again_without_a_graph",
    ),
    Mutant(
        "runtime/options/replay.py",
        "with torch.no_grad(), run.environment.entered(run.shared):",
        "with torch.no_grad():",
        "unit/test_stage_options.py::test_under_autocast_an_activation_is_made_again_without_a_graph",
    ),
    Mutant(
        "runtime/measures/clock.py",
        "        torch.clear_autocast_cache()\n        for first in",
        "        for first in",
        "unit/test_runtime_measuring.py::test_under_autocast_every_run_of_a_step_casts_its_weights",
    ),
    Mutant(
        "runtime/measures/clock.py",
        "        torch.clear_autocast_cache()\n        begin",
        "        begin",
        "unit/test_runtime_measuring.py::test_under_autocast_every_run_of_a_step_casts_its_weights",
    ),
    Mutant(
        "runtime/options/replay.py",
        "            run.environment.entered(run.shared),",
        "            nullcontext(),",
        "agreement/test_stage_options.py::test_every_option_trains_as_plain",
    ),
    Mutant(
        "runtime/options/trace.py",
        "is_repeatable=not (is_stale or is_outside)",
        "is_repeatable=not is_outside",
        "agreement/test_stage_options.py::test_every_option_trains_as_plain",
    ),
    Mutant(
        "runtime/options/trace.py",
        "if len(places) == 1:",
        "if places:",
        "agreement/test_fit_autocast.py::test_factors_that_are_equal_in_the_planned_call_only",
    ),
    Mutant(
        "runtime/options/trace.py",
        "if self._draws.seen and not drawn:",
        "if False:",
        "agreement/test_fit_randomness.py::test_what_draws_nothing_when_it_is_planned_may_draw_later",
    ),
    Mutant(
        "runtime/execute/environment.py",
        "environment.random = drawn or environment.random",
        "environment.random = drawn",
        "agreement/test_fit_randomness.py::test_a_state_is_counted_where_nothing_is_drawn_yet",
    ),
    Mutant(
        "runtime/capture/dynamo.py",
        "told = (backend_settings(), *map(type, inputs),",
        "told = ((), *map(type, inputs),",
        "agreement/test_fit_options.py::test_a_setting_of_kernels_that_is_changed_after_fit_keeps_the_budget",
    ),
    Mutant(
        "runtime/options/trace.py",
        "self.values[index].is_overwritten = True",
        "self.values[index].is_overwritten = False",
        "agreement/test_stage_options.py::test_every_option_trains_as_plain",
    ),
    Mutant(
        "runtime/options/graph.py",
        "return seen.is_repeatable and not (seen.reads - ignored) & self.trace.written",
        "return seen.is_repeatable",
        "agreement/test_stage_options.py::test_every_option_trains_as_plain",
    ),
    Mutant(
        "runtime/options/generator.py",
        "kwargs[name] = self.graph.call_function(scratch, (kwargs[name],))",
        "pass",
        "agreement/test_stage_options.py::test_every_option_trains_as_plain",
    ),
    Mutant(
        "runtime/options/front.py",
        "yield rest | reads, _changed",
        "yield rest, _changed",
        "unit/test_stage_option_front.py::test_the_front_is_that_of_all_choices",
    ),
    Mutant(
        "runtime/options/front.py",
        "            kept = result + operator.state_bytes",
        "            kept = operator.state_bytes",
        "unit/test_stage_option_front.py::test_the_front_is_that_of_all_choices",
    ),
    Mutant(
        "formulations/stage_front.py",
        "yield model.kept[source] + model.replayed[source] >= model.replayed[i]",
        "yield model.kept[source] <= 1",
        "unit/test_stage_option_front.py::test_an_integer_program_finds_the_same_times",
    ),
    Mutant(
        "runtime/execute/held.py",
        "        stand_in = None if policy is None else policy.stand_in(tensor)",
        "        stand_in = None",
        _IN_PART,
    ),
    Mutant(
        "runtime/execute/handles.py",
        "            if absent is None and self.policy is not None:",
        "            if self.policy is not None:",
        _IN_PART,
    ),
    Mutant(
        "runtime/options/front_hull.py",
        "saved > nanosecond * operator.time",
        "saved > 0",
        "unit/test_stage_option_front.py::test_minimum_cuts_find_the_corners_of_the_hull",
    ),
    Mutant(
        "runtime/options/front_hull.py",
        'graph.add_edge(replayed, ("wanted", source))',
        "pass",
        "unit/test_stage_option_front.py::test_a_minimum_cut_finds_the_fewest_bytes",
    ),
)
