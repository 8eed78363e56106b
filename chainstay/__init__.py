"""Train neural networks inside a memory budget, provably optimally.

Profile a model as a chain of stages, find the fastest schedule of what to keep and what
to recompute within a memory budget, with proof, and run training by it.

Every public name is listed here and loaded on first use: ``import chainstay`` needs
neither torch nor a solver.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chainstay.applying import apply_plan, save_plan
    from chainstay.baselines import BASELINES, fastest_within
    from chainstay.dp import DP, BudgetCurve, least_budget, unrestricted_bound
    from chainstay.dp.join import join_curve, waterfilling_bound
    from chainstay.dp.revolve import Revolve
    from chainstay.errors import (
        BackendError,
        CertificateError,
        ChainstayError,
        HostBudgetError,
        InfeasibleBudgetError,
        InvalidBudgetError,
        InvalidPlanError,
        InvalidProfileError,
        InvalidScheduleError,
        InvalidSolutionError,
        NotAJoinError,
        PlanMismatchError,
        SolverLimitError,
        UnknownDeviceError,
        UnknownMethodError,
        UnsupportedModelError,
    )
    from chainstay.fitting import fit, unfit
    from chainstay.formulations import CPSAT, MIP
    from chainstay.formulations.join import AssignCuts
    from chainstay.planning import solve_measured
    from chainstay.plans import Plan, load_plan
    from chainstay.problems.hybrid import HybridClaim, HybridProblem, HybridSolution
    from chainstay.problems.offload import OffloadClaim, OffloadProblem, OffloadSolution
    from chainstay.profiles import (
        ChainProfile,
        HomogeneousJoin,
        JoinProfile,
        Link,
        OffloadProfile,
        RunCost,
        SharedGradient,
        Skip,
        Stage,
        StageOption,
    )
    from chainstay.runtime import MeasuredChain, PlannedChain, measure
    from chainstay.runtime.capture.extract import (
        ExtractedChain,
        ExtractedJoin,
        extract,
        extract_join,
    )
    from chainstay.runtime.estimate import DeviceModel, Estimated, estimate
    from chainstay.runtime.transfer import measure_link
    from chainstay.schedule import Discards, Op, OpKind, Schedule
    from chainstay.solution import Claim, Family, Method, Solution, Status
    from chainstay.solve import solve_chain, solve_join
    from chainstay.solve.hybrid import solve_hybrid
    from chainstay.solve.offload import solve_offload
    from chainstay.timetable import Timetable, Transfers
    from chainstay.validation.hybrid.simulate import simulate_hybrid
    from chainstay.validation.join.simulate import simulate_join
    from chainstay.validation.offload.simulate import simulate_offload
    from chainstay.validation.simulate import Replay, simulate

__version__ = "0.1.0"

_HOME: Final = MappingProxyType(
    {
        name: f"chainstay.{module}"
        for module, names in {
            "applying": "apply_plan save_plan",
            "baselines": "BASELINES fastest_within",
            "dp": "DP BudgetCurve least_budget unrestricted_bound",
            "dp.join": "join_curve waterfilling_bound",
            "dp.revolve": "Revolve",
            "errors": "BackendError CertificateError ChainstayError HostBudgetError "
            "InfeasibleBudgetError InvalidBudgetError InvalidPlanError InvalidProfileError "
            "InvalidScheduleError InvalidSolutionError NotAJoinError PlanMismatchError "
            "SolverLimitError UnknownDeviceError UnknownMethodError UnsupportedModelError",
            "fitting": "fit unfit",
            "formulations": "CPSAT MIP",
            "formulations.join": "AssignCuts",
            "planning": "solve_measured",
            "plans": "Plan load_plan",
            "problems.hybrid": "HybridClaim HybridProblem HybridSolution",
            "problems.offload": "OffloadClaim OffloadProblem OffloadSolution",
            "profiles": "ChainProfile HomogeneousJoin JoinProfile Link OffloadProfile RunCost "
            "SharedGradient Skip Stage StageOption",
            "runtime": "MeasuredChain PlannedChain measure",
            "runtime.capture.extract": "ExtractedChain ExtractedJoin extract extract_join",
            "runtime.estimate": "DeviceModel Estimated estimate",
            "runtime.transfer": "measure_link",
            "schedule": "Discards Op OpKind Schedule",
            "solution": "Claim Family Method Solution Status",
            "solve": "solve_chain solve_join",
            "solve.hybrid": "solve_hybrid",
            "solve.offload": "solve_offload",
            "timetable": "Timetable Transfers",
            "validation.hybrid.simulate": "simulate_hybrid",
            "validation.join.simulate": "simulate_join",
            "validation.offload.simulate": "simulate_offload",
            "validation.simulate": "Replay simulate",
        }.items()
        for name in names.split()
    }
)
"""The module of each public name."""

__all__ = [
    "BASELINES",
    "CPSAT",
    "DP",
    "MIP",
    "AssignCuts",
    "BackendError",
    "BudgetCurve",
    "CertificateError",
    "ChainProfile",
    "ChainstayError",
    "Claim",
    "DeviceModel",
    "Discards",
    "Estimated",
    "ExtractedChain",
    "ExtractedJoin",
    "Family",
    "HomogeneousJoin",
    "HostBudgetError",
    "HybridClaim",
    "HybridProblem",
    "HybridSolution",
    "InfeasibleBudgetError",
    "InvalidBudgetError",
    "InvalidPlanError",
    "InvalidProfileError",
    "InvalidScheduleError",
    "InvalidSolutionError",
    "JoinProfile",
    "Link",
    "MeasuredChain",
    "Method",
    "NotAJoinError",
    "OffloadClaim",
    "OffloadProblem",
    "OffloadProfile",
    "OffloadSolution",
    "Op",
    "OpKind",
    "Plan",
    "PlanMismatchError",
    "PlannedChain",
    "Replay",
    "Revolve",
    "RunCost",
    "Schedule",
    "SharedGradient",
    "Skip",
    "Solution",
    "SolverLimitError",
    "Stage",
    "StageOption",
    "Status",
    "Timetable",
    "Transfers",
    "UnknownDeviceError",
    "UnknownMethodError",
    "UnsupportedModelError",
    "apply_plan",
    "estimate",
    "extract",
    "extract_join",
    "fastest_within",
    "fit",
    "join_curve",
    "least_budget",
    "load_plan",
    "measure",
    "measure_link",
    "save_plan",
    "simulate",
    "simulate_hybrid",
    "simulate_join",
    "simulate_offload",
    "solve_chain",
    "solve_hybrid",
    "solve_join",
    "solve_measured",
    "solve_offload",
    "unfit",
    "unrestricted_bound",
    "waterfilling_bound",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'chainstay' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
