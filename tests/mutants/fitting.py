"""Errors in what cuts models and plans them: extraction, planning, fitting."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_EXTRACTION: Final = (
    Mutant(
        "runtime/capture/graph.py",
        "            copy.target = asserted\n",
        "            pass\n",
        "agreement/test_conditions.py::test_assertions_are_operators_that_raise_as_in_the_model",
    ),
    Mutant(
        "runtime/capture/values/lookups.py",
        'self.stack[-1].call_method(self, "logical_not", [], {})',
        "self.stack[-1]",
        "agreement/test_conditions.py::test_assertions_are_operators_that_raise_as_in_the_model",
    ),
    Mutant(
        "runtime/capture/caught_errors.py",
        'r"_assert_async"\n    r"|(linalg_)?',
        'r"(linalg_)?',
        "abuse/test_inside_the_forward.py::test_an_error_by_values_that_the_model_catches",
    ),
    Mutant(
        "runtime/capture/values/sizes.py",
        'return losses if given.get("reduction") == "none" else losses.sum()',
        "return losses",
        "agreement/test_ctc_loss.py",
    ),
    Mutant(
        "runtime/options/special_operators.py",
        "return node.target is functional.ctc_loss",
        "return False",
        "agreement/test_ctc_loss.py",
    ),
    Mutant(
        "fitting/waiting_calls.py",
        "and known.waits]",
        "]",
        "agreement/test_waiting_calls.py",
    ),
    Mutant(
        "fitting/fitted.py",
        " and not may_be_packed(call)",
        "",
        "agreement/test_fit_caches.py",
    ),
    Mutant(
        "runtime/capture/values/sizes.py",
        "            known += _places(",
        "            known += [part] or _places(",
        "agreement/test_numbers_by_values.py",
    ),
    Mutant(
        "runtime/capture/values/conditions.py",
        " and called_name(node) not in CHECKPOINTS",
        "",
        "agreement/test_conditions.py",
    ),
    Mutant(
        "runtime/capture/values/origins.py",
        "pending = [other for other in others if _memory(changed_by(other)) & memory]",
        "pending = []",
        "agreement/test_conditions.py",
    ),
    Mutant(
        "runtime/capture/values/origins.py",
        "if any(_memory(changed_by(node)) & _memory(given) for node in found):",
        "if not found:",
        "agreement/test_conditions.py",
    ),
    Mutant(
        "runtime/capture/values/sizes.py",
        "translator.output.shape_env.pending_fresh_unbacked_symbols.clear()",
        "pass",
        "agreement/test_sizes_by_values.py",
    ),
    Mutant(
        "runtime/capture/dynamo.py",
        "if sum(len(answers) - 1 for answers in known if answers) > MOST_GRAPHS_BY_VALUES:",
        "if len(asked.answers) > MOST_GRAPHS_BY_VALUES + 1:",
        "agreement/test_numbers_by_values.py",
    ),
    Mutant(
        "fitting/proportion.py",
        "except InvalidProfileError:",
        "except NotImplementedError:",
        "agreement/test_sizes_by_values.py::test_another_size_is_another_graph",
    ),
    Mutant(
        "runtime/capture/values/conditions.py",
        "(_ones, _columns)",
        "(_ones,)",
        "agreement/test_fit_caches.py",
    ),
    Mutant(
        "runtime/capture/cuts/crossings.py",
        "forbidden.update(range(begun.get(storage, index), index))",
        "forbidden.update(range(begun.get(storage, index), index - 1))",
        "unit/test_extraction.py::TestItIsTheModel::test_no_cut_before_a_change_in_place",
    ),
    Mutant(
        "runtime/capture/cuts/crossings.py",
        "forbidden.update(range(crossings.first[node], crossings.last[node] + 1))",
        "forbidden.update(range(crossings.first[node], crossings.last[node]))",
        "unit/test_cutting.py::test_stages_run_again_to_the_same_state[Peaks]",
    ),
    Mutant(
        "runtime/capture/cuts/crossings.py",
        "set(observed[argument].storages) - observed[node].written:",
        "set(observed[argument].storages) & observed[node].written:",
        "unit/test_cutting.py::test_stages_run_again_to_the_same_state[Reading]",
    ),
    Mutant(
        "runtime/capture/operators.py",
        'updates_statistics and parameter.name in ("running_mean", "running_var")',
        "False",
        "unit/test_cutting.py::test_stages_run_again_to_the_same_state[Normalizing]",
    ),
    Mutant(
        "runtime/capture/cuts/cut.py",
        "saved_bytes=observed.size_of(saved - given)",
        "saved_bytes=observed.size_of(saved)",
        "unit/test_cutting.py::test_saved_bytes_by_hand",
    ),
    Mutant(
        "runtime/capture/cuts/cut_points.py",
        "len(cuts) >= granularity:",
        "len(cuts) > granularity:",
        "unit/test_cutting.py::test_no_more_stages_than_asked_for",
    ),
    Mutant(
        "runtime/capture/cuts/crossings.py",
        "        and not observed[node].draws_random\n",
        "",
        "unit/test_extraction.py::TestItIsTheModel::"
        "test_random_values_are_drawn_where_the_model_draws_them",
    ),
    Mutant(
        "runtime/capture/graph.py",
        "            copy.meta[REGIONS] = regions",
        "            pass",
        "unit/test_extraction.py::TestItIsTheModel::test_autocast_of_the_model_itself",
    ),
    Mutant(
        "runtime/capture/blocks/calls.py",
        "return bool(passed) and passed <= {*call.taken} <= known",
        "return bool(passed) and passed <= {*call.taken}",
        "unit/test_interception.py::test_what_the_model_makes_beside_blocks_parts_segments",
    ),
    Mutant(
        "runtime/capture/graph_key.py",
        "return (shape, str(strides), value.dtype",
        "return (len(value.shape), len(str(strides)), value.dtype",
        "agreement/test_smaller_calls.py::test_the_oldest_plans_are_let_go",
    ),
    Mutant(
        "runtime/stage/tied_gradients.py",
        "    return (*made[:index], own, *made[index + 1 :])",
        "    return None",
        "agreement/test_runtime_shared_memory.py::test_the_gradient_of_a_large_tied_weight_is_summed_in_place[False]",
    ),
    Mutant(
        "runtime/capture/trials/equivalence.py",
        "        if not _is_same(old, new):",
        "        if old is None:",
        "unit/test_extraction_referee.py",
    ),
    Mutant(
        "runtime/capture/values/lookups.py",
        "not_: _truth, ",
        "",
        "agreement/test_conditions.py::test_another_answer_is_another_graph",
    ),
    Mutant(
        "runtime/capture/tracer_patches.py",
        '        (functions, "__init__", _taking_the_original(functions)),\n',
        "",
        "agreement/test_disabled_functions.py::test_what_is_disabled_is_in_the_graph",
    ),
    Mutant(
        "runtime/capture/tracer_patches.py",
        "        if _original(value) is None:\n",
        "        if value is not None:\n",
        "agreement/test_disabled_functions.py::test_what_is_disabled_is_in_the_graph",
    ),
    Mutant(
        "runtime/capture/tracer_patches.py",
        'home not in ("torch", __package__.partition(".")[0])',
        'home != "torch"',
        "abuse/test_inside_the_forward.py",
    ),
    Mutant(
        "runtime/capture/tracer_patches.py",
        '        (tensors, "call_method", _requiring_gradients(tensors)),\n',
        "",
        "agreement/test_requires_grad_inside.py",
    ),
    Mutant(
        "runtime/capture/trials/equivalence.py",
        "                if id(leaf) not in made\n",
        "",
        "agreement/test_requires_grad_inside.py",
    ),
    Mutant(
        "runtime/capture/graph.py",
        "        if made in node.graph.output_node().all_input_nodes:\n",
        "        if made is None:\n",
        "agreement/test_requires_grad_inside.py",
    ),
    Mutant(
        "runtime/capture/graph.py",
        "        copies[made] = self.graph.create_node(",
        "        copies[node] = self.graph.create_node(",
        "agreement/test_requires_grad_inside.py",
    ),
    Mutant(
        "runtime/capture/tracer_patches.py",
        '        (tensors, "unpack_var_sequence", _unpacking(tensors)),\n',
        "",
        "agreement/test_fit_recurrent.py::test_gradients_of_rows_are_put_together_at_once",
    ),
    Mutant(
        "runtime/capture/trials/isolation.py",
        "    if freed:\n",
        "    if not tensors:\n",
        "agreement/test_fit_effects.py::"
        "test_a_forward_that_frees_its_input_is_refused_and_the_input_is_as_before",
    ),
    Mutant(
        "runtime/capture/trials/isolation.py",
        "return tensor.device, alike if room.holds(alike) else alike.cpu()",
        "return tensor.device, room.copied(alike)",
        "unit/test_isolation.py",
    ),
    Mutant(
        "runtime/capture/trials/isolation.py",
        "if addresses and address_of(alike) in addresses:",
        "if addresses is None:",
        "unit/test_isolation.py",
    ),
    Mutant(
        "runtime/capture/trials/isolation.py",
        "_ABSENT if compiled is None else PlainCall(compiled, module)",
        "_ABSENT",
        "agreement/test_fit_compiled_blocks.py",
    ),
    Mutant(
        "runtime/capture/blocks/graphs.py",
        "key = (type(call.model), call.function, compiler is not None)",
        "key = (type(call.model), call.function)",
        "agreement/test_fit_compiled_blocks.py::test_some_blocks_of_a_class_are_compiled",
    ),
    Mutant(
        "runtime/capture/blocks/sample.py",
        "(graphs.count == known or paths == before)",
        "True",
        "agreement/test_fit_expanded_blocks.py::test_blocks_that_differ_in_a_rate",
    ),
    Mutant(
        "fitting/blocks.py",
        "                self.unreached += refusal.names\n",
        "                raise\n",
        "agreement/test_fit_expanded_blocks.py"
        "::test_blocks_that_the_loss_does_not_depend_on_run_by_themselves",
    ),
    Mutant(
        "fitting/blocks.py",
        " or size > self.largest",
        "",
        "agreement/test_numbers_of_calls.py"
        "::test_shapes_that_change_no_blocks_are_not_looked_at_for_ever",
    ),
    Mutant(
        "runtime/capture/blocks/calls.py",
        "and module in seen\n",
        "\n",
        "agreement/test_fit_compiled_blocks.py::test_a_part_compiled_as_one_hides_its_blocks",
    ),
    Mutant(
        "fitting/blocks.py",
        '_CALLS: Final = ("_compiled_call_impl", "forward")',
        '_CALLS: Final = ("forward",)',
        "agreement/test_fit_compiled_blocks.py::test_blocks_compiled_in_place_after_fit",
    ),
    Mutant(
        "fitting/blocks.py",
        '_CALLS: Final = ("_compiled_call_impl", "forward")',
        '_CALLS: Final = ("_compiled_call_impl",)',
        "agreement/test_fit_expanded_blocks.py::test_a_forward_put_around_that_of_a_planned_block[0]",
    ),
    Mutant(
        "runtime/capture/trials/model_forward.py",
        "    vars(module).pop(STOOD_IN_FOR, None)  # of a stand-in that somebody has removed\n",
        "",
        "agreement/test_fit_expanded_blocks.py::test_a_forward_put_around_that_of_a_planned_block",
    ),
    Mutant(
        "fitting/blocks.py",
        "kind.is_outgrown, kind.random = True, before",
        "kind.is_outgrown = True",
        "agreement/test_fit_effects.py"
        "::test_layers_that_no_call_ran_before_are_planned_as_that_call_drew",
    ),
    Mutant(
        "runtime/measures/blocks/block_costs.py",
        "if len(found.chain.stages) > len(around.chain.stages):",
        "if False:",
        "agreement/test_fit_effects.py::test_a_plan_holds_for_calls_that_leave_layers_out",
    ),
    Mutant(
        "runtime/capture/blocks/sample.py",
        "(call.name, *modules_around(call.name))",
        "(call.name,)",
        "agreement/test_fit_effects.py"
        "::test_layers_that_no_call_ran_before_are_planned_as_that_call_drew",
    ),
    Mutant(
        "runtime/execute/block_executor.py",
        "first + 1 if is_fixed else len(stages)",
        "first + 1",
        "agreement/test_fit_effects.py::test_a_plan_holds_for_calls_that_leave_layers_out",
    ),
    Mutant(
        "runtime/capture/values/constant_masks.py",
        "operators is None or any(map(changed_by, operators))",
        "operators is None",
        "unit/test_constant_masks.py",
    ),
    Mutant(
        "runtime/capture/values/constant_masks.py",
        "bool((value != future).all())",
        "bool((value != future).any())",
        "unit/test_constant_masks.py",
    ),
    Mutant(
        "runtime/capture/dynamo.py",
        "if not (self._keep_masks() or self.deny()):",
        "if not self.deny():",
        "unit/test_constant_masks.py::test_a_mask_that_should_not_have_been_left_out_is_kept_after_all",
    ),
    Mutant(
        "runtime/capture/trials/equivalence.py",
        "        return not all(map(_is_same, expected.values(), again.values()))",
        "        return True",
        "unit/test_extraction_referee.py",
    ),
    Mutant(
        "runtime/capture/trials/equivalence.py",
        "            with other_bits_accepted.set_to(value=True):",
        "            with other_bits_accepted.set_to(value=False):",
        "unit/test_extraction_referee.py",
    ),
    Mutant(
        "runtime/execute/environment.py",
        "            present[position] = nn.Parameter(",
        "            _ = nn.Parameter(",
        "unit/test_runtime_execute.py::test_every_use_gives_the_same_bits[use_accumulation-segments]",
    ),
)

_PLANNING: Final = (
    Mutant(
        "planning/chain.py",
        "if peak > self.budget or not self.can_run(schedule):",
        "if peak >= self.budget or not self.can_run(schedule):",
        "unit/test_planning.py::test_plain_training_that_fits_is_the_plan_of_every_method",
    ),
    Mutant(
        "planning/questions.py",
        "discards=solution.discards, overheads=overheads)",
        "discards=solution.discards)",
        "unit/test_planning.py::"
        "test_plans_are_bounded_by_the_optimum_among_all_and_mostly_attain_it[3]",
    ),
    Mutant(
        "planning/chain.py",
        "if fits and (best is None or makespan < best.makespan):",
        "if fits and (best is None or makespan > best.makespan):",
        "unit/test_planning.py::"
        "test_of_plans_that_fit_the_fastest_is_kept_in_whatever_order_they_come",
    ),
    Mutant(
        "planning/chain.py",
        "            discards=bound.discards,\n            lower_bound=bound.lower_bound,\n",
        "            discards=bound.discards,\n            lower_bound=solution.makespan,\n",
        "unit/test_planning.py::test_what_dropping_takes_besides_counts_in_plans_and_in_no_bound",
    ),
    Mutant(
        "planning/chain.py",
        "if bound is None or not knows_all or",
        "if bound is None or",
        "unit/test_planning.py::test_free_discards_use_no_options_and_claim_nothing_about_them",
    ),
    Mutant(
        "planning/chain.py",
        "        if not self.can_run(schedule):\n            what",
        "        if self.limit is schedule:\n            what",
        "unit/test_planning.py::test_auto_goes_without_what_cannot_be_run",
    ),
    Mutant(
        "planning/chain.py",
        "return found.makespan + noticed < best.makespan",
        "return found.makespan < best.makespan",
        "unit/test_planning.py::test_auto_takes_free_discards_that_save_enough_to_give_up_a_proof",
    ),
    Mutant(
        "runtime/measures/measured.py",
        "overhead - before_run[op.stage]",
        "overhead",
        "agreement/test_idle_cuts.py::"
        "test_plain_training_needs_what_is_predicted_though_sums_are_let_go",
    ),
    Mutant(
        "planning/chain.py",
        "return judged.needs <= self.budget",
        "return judged.replay.peak_bytes <= self.budget",
        "unit/test_planning.py::test_what_is_made_again_while_it_is_held_counts_twice",
    ),
    Mutant(
        "planning/chain.py",
        "account = self.measured.account.without_times()",
        "account = self.measured.account",
        "unit/test_planning.py::test_what_an_error_asks_for_is_enough_whatever_the_times[dp]",
    ),
    Mutant(
        "runtime/measures/account.py",
        "copied = self._environments_before if apart else held",
        "copied = held",
        "unit/test_planning.py::test_environments_of_a_profile_are_those_of_the_run",
    ),
    Mutant(
        "runtime/measures/account.py",
        "replace(run, overhead_bytes=max(size, run.overhead_bytes))",
        "run",
        "unit/test_planning.py::test_what_every_schedule_needs_at_least_and_what_one_needs",
    ),
)

_FITTING: Final = (
    Mutant(
        "fitting/strategies/fastest.py",
        "if plain_peak(self.measured) <= self.budget:",
        "if plain_peak(self.measured) < 0:",
        "agreement/test_fit_offload.py::test_nothing_is_faster_than_keeping_all",
    ),
    Mutant(
        "fitting/strategies/fastest.py",
        "return Fraction(self.found[name].makespan) / max(self.plain_time(name), 1)",
        "return Fraction(max(self.plain_time(name), 1)) / self.found[name].makespan",
        "agreement/test_fit_offload.py::test_the_fastest_of_four_ways_is_chosen[1000000000000]",
    ),
    Mutant(
        "solve/budgets.py",
        "size = int(share * plain_bytes())",
        "size = int(share * plain_bytes()) + 1",
        "unit/test_fit_budgets.py::test_shares_are_rounded_down",
    ),
    Mutant(
        "profiles/link.py",
        "capacity=min(limits, default=None)",
        "capacity=max(limits, default=None)",
        "unit/test_fit_budgets.py::test_of_two_limits_on_the_host_the_lower_one_counts",
    ),
    Mutant(
        "fitting/transformers_models.py",
        "            config.use_cache = was_kept",
        "            config.use_cache = kept",
        "unit/test_fit_budgets.py::test_caches_are_off_inside_and_on_again",
    ),
    Mutant(
        "fitting/fitted.py",
        "if not is_same_without_caches(call, uncached):",
        "if is_same_without_caches(call, uncached):",
        "unit/test_fit_budgets.py::test_caches_are_kept_where_the_bits_depend_on_them",
    ),
)

_SMALLER_CALLS: Final = (
    Mutant(
        "fitting/proportion.py",
        "if missing <= 0:",
        "if missing <= 2**40:",
        "agreement/test_smaller_calls.py::test_a_prediction_that_is_too_low_is_corrected",
    ),
    Mutant(
        "fitting/measured_graph.py",
        "if max(*passed_on, *sizes) > 1:",
        "if max(*passed_on, *sizes) > 9:",
        "agreement/test_smaller_calls.py::test_a_larger_call_is_measured_and_lends_to_those_below_it",
    ),
    Mutant(
        "fitting/planner.py",
        "if len(self.plans) > MOST_SHAPES:",
        "if len(self.plans) > 2 * MOST_SHAPES:",
        "agreement/test_smaller_calls.py::test_the_oldest_plans_are_let_go",
    ),
    Mutant(
        "runtime/capture/dynamo.py",
        "self._compiled.pop(next(iter(self._compiled))).forget()",
        "self._compiled.pop(next(iter(self._compiled)))",
        "agreement/test_smaller_calls.py::test_the_oldest_plans_are_let_go",
    ),
)

_SHOWN: Final = (
    Mutant(
        "plans/kept_in_part.py",
        "sum(full.saved_bytes for full in whole) - option.saved_bytes",
        "sum(full.saved_bytes for full in whole)",
        "unit/test_options_shown.py::test_a_plan_says_what_it_keeps_in_part",
    ),
    Mutant(
        "runtime/joins/account.py",
        'again=most.get((key, "again"), if_again + 2 * saved),',
        'again=most.get((key, "again"), if_again + saved),',
        "unit/test_runtime_joins.py::test_runs_of_another_kind_have_what_would_stand_beside_them",
    ),
    Mutant(
        "plans/kept_in_part.py",
        "option[op.branch, op.stage] = op.option",
        "option.setdefault((op.branch, op.stage), op.option)",
        "unit/test_options_shown.py::test_of_two_records_of_a_stage_the_last_one_counts",
    ),
    Mutant(
        "runtime/options/selection.py",
        "self.replayed <= replayable and ",
        "",
        "agreement/test_plan_files.py::test_an_option_that_a_stage_does_not_have_is_refused",
    ),
    Mutant(
        "runtime/options/selection.py",
        " and self.redrawn <= redrawable",
        "",
        "agreement/test_plan_files.py::test_an_option_that_a_stage_does_not_have_is_refused",
    ),
)

MUTANTS: Final = (*_EXTRACTION, *_PLANNING, *_FITTING, *_SMALLER_CALLS, *_SHOWN)
