"""Plan the training of a Llama of 7 billion parameters on a machine that could not hold it.

Needs transformers (only its code: nothing is downloaded), half a gigabyte of memory and no GPU.

    python examples/plan_7b.py [device] [batch]        # A100-80GB, 1

Exits with 1 if that takes more than half a minute of processor time.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from chainstay import Estimated, Schedule, Solution, estimate, simulate, solve_chain
from chainstay.units import format_bytes, format_time

# transformers imports torchvision if it is there; one built for another torch would fail then,
# for want of two operators that nobody calls here.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        OPERATORS.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402  # what it needs is above

LAYERS, TOKENS = 32, 2048
MOST_SECONDS = 30.0
SHARES = ("70%", "40%", "20%")
"""Budgets, of what plain training needs for activations, their gradients and temporaries."""


def main() -> None:
    """Estimate, plan, and print what comes out."""
    device, batch = (*sys.argv[1:], *("A100-80GB", "1")[len(sys.argv) - 1 :])
    start = time.perf_counter()
    estimated = estimate_llama(device, int(batch))
    known = time.perf_counter()
    profile = estimated.profile
    plain = simulate(profile, Schedule.keep_all(len(profile)))
    plans = {share: solve_chain(profile, share) for share in SHARES}
    solved = time.perf_counter()

    console = Console(width=100, highlight=False)
    console.print(
        f"Llama of {estimated.parameters / 1e9:.2f} billion parameters in bfloat16, "
        f"{batch} x {TOKENS} tokens, on one {estimated.device.name};\n"
        f"beside the budget: {format_bytes(estimated.parameter_bytes)} of parameters, and as much "
        "for their gradients"
    )
    console.print(table_of(estimated, plain.peak_bytes, plans))
    taken = time.process_time()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    console.print(
        f"{len(profile)} stages estimated in {known - start:.1f} s, {len(plans)} plans found and "
        f"proved in {solved - known:.1f} s;\nthis process took {format_bytes(resident)} and "
        f"{taken:.1f} s of processor time"
    )
    if taken > MOST_SECONDS:
        sys.exit(f"that is more than {MOST_SECONDS:.0f} s")


def estimate_llama(device: str, batch: int) -> Estimated:
    """Costs of a step on `batch` sequences."""
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=4096,
        intermediate_size=11008,
        num_attention_heads=32,
        vocab_size=32000,
        max_position_embeddings=TOKENS,
        use_cache=False,
    )
    tokens = torch.zeros(batch, TOKENS, dtype=torch.long)
    return estimate(
        lambda: LlamaForCausalLM(config).bfloat16(),
        (),
        {"input_ids": tokens, "labels": tokens},
        device=device,
    )


def table_of(estimated: Estimated, plain_peak: int, plans: dict[str, Solution]) -> Table:
    """One line per budget, plain training first."""
    plain_time = estimated.profile.plain_time
    table = Table()
    for title in ("budget", "in bytes", "peak", "step", "slower", "proved"):
        table.add_column(title, justify="right")
    table.add_row("plain", "", format_bytes(plain_peak), format_time(plain_time), "", "")
    for share, plan in plans.items():
        table.add_row(
            share,
            format_bytes(plan.budget),
            format_bytes(plan.peak_bytes),
            format_time(plan.makespan),
            f"{plan.makespan / plain_time - 1:.1%}",
            str(plan.status),
        )
    return table


if __name__ == "__main__":
    main()
