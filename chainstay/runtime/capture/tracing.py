"""TorchDynamo while it traces: its settings, and its failures in words for people."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import torch
from torch.nn import functional

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.runtime.capture.cuts.stage_names import outermost
from chainstay.runtime.capture.tracer_patches import tracer_patches

_MOST_GRAPHS: Final = 256
"""Graphs per function. Every call looks through those there are, so more would be slow."""

_SETTINGS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "skip_nnmodule_hook_guards": False,  # a hook that is added later must be seen
        "skip_tensor_guards_with_matching_dict_tags": False,  # types of parameters may change
        "optimize_ddp": False,  # else a graph is split at the buckets of gradients
        "cache_size_limit": _MOST_GRAPHS,
        "accumulated_cache_size_limit": 1 << 30,
        "fail_on_cache_limit_hit": True,  # instead of running the function as it is
        "suppress_errors": False,  # likewise
        "allow_unspec_int_on_nn_module": True,  # a counter becomes an input of the graph
        "allow_rnn": True,
        "capture_scalar_outputs": False,  # a number read from a tensor may decide anything
        "capture_dynamic_output_shape_ops": False,  # likewise
        "error_on_recompile": False,
    }
)
"""Names that torch 2.6 and 2.13 both know; of others, those that are there are set."""

_LOUD: Final = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch._subclasses")
"""Loggers that print whole stacks of what is raised anyway."""

_CONSTANTS: Final = re.compile(r"\[(ConstantVariable\(.*\))\]")
"""The arguments of an exception that the model raised, as torch 2.11 tells them."""

_SKIPPED: Final = "found no compiled frames"
"""What torch.compile says where it has run nothing, in a message without a class of its own."""

_REASONS: Final[Mapping[str, str]] = {
    r"\bRandom\.\w+|\bnumpy\.random\b": (
        "it draws from Python's random or from NumPy, which no graph can; draw from torch, or in "
        "front of the model"
    ),
    "trace_autograd_ops": (  # a setting that would lead astray
        "it takes gradients inside of the forward (torch.autograd.grad)"
    ),
    r"nn\.Parameter\(\)|nn_parameter construction": (  # the latter by torch 2.6
        "it makes parameters while it runs; if its first call does that, make this one under "
        "torch.no_grad()"
    ),
    r"as_proxy\(\)|call_function args: .*UserDefinedObject": (  # by torch 2.6
        "it gives an operator what no graph can hold, such as a torch.Generator; draw from torch's "
        "own generator, or in front of the model"
    ),
    r"torch\.compiler\.disable.*\.forward at 0x|inline in skipfiles: \S+ \| _fn ": (  # likewise
        "it calls a forward that no graph takes in: that of a fitted model, itself for example, "
        "or one under torch.compiler.disable"
    ),
    "(?i)data-dependent (expression|branching)|Could not extract specialized"
    r"|Dynamic control flow is not|builtin: bool \[|^Tensor\.item"
    r"|^data dependent operator: aten\._local_scalar_dense": (  # by torch 2.6
        "Data-dependent branching: it decides by the value of a tensor or of NumPy's; decide by a "
        "Python bool or number that the module keeps, or that the call is given"
    ),
    "(?i)unbacked symbol": (
        "something is made whose shape depends on the values of a tensor; compute it from sizes "
        "and from numbers that the module keeps"
    ),
    "does not support sparse": (
        "it reads a sparse tensor that no graph takes: one of rows or columns (CSR, CSC), which "
        "to_sparse_coo() changes, or one that is trained"
    ),
    r"torch\.jit\.script|ScriptModule|_CachedForward": (
        "it calls {scripted}, compiled by torch.jit, which no graph can look into; put the module "
        "that it was made of in its place"
    ),
    "(?i)module-level backwards hooks": (
        "a module has a backward hook (register_full_backward_hook, say), which no graph takes in; "
        "a hook on a tensor (register_hook) can be part of one"
    ),
    "pack_padded_sequence": (
        "it packs sequences (pack_padded_sequence), which no graph can; give the recurrent layer "
        "the padded batch, and mask what is behind the end of each sequence"
    ),
}
"""Why there is no full graph, by what TorchDynamo says; the first that is found counts."""

_TRACER: Final = "_dynamo/convert_frame.py"

RAISES: Final = "it raises "
"""How the reason begins why there is no graph of a function that raises something."""

_RAISED: Final = "context: raised exception "
"""What TorchDynamo says where the traced code raises."""

_FAILED: Final = "Failed running "
"""What torch 2.6 says where an operator raises; the operator's own text is on the next line."""

_OBSERVED: Final = "Observed exception"
"""What torch says where the traced code raises; 2.6 does not tell what."""

_WITH_FAKES: Final = "fake tensor"
"""What TorchDynamo says where an operator raises; a list of all its arguments follows."""


class NotRunError(Exception):
    """A captured graph was not run, so the call can be made again."""


class UnknownCallError(NotRunError):
    """No captured graph is for this call."""


class NoFullGraphError(UnsupportedModelError):
    """TorchDynamo cannot trace the function into one graph; the text says where and why."""


class NotTheModelError(UnsupportedModelError):
    """A captured graph computes something else than its model; the text says what."""


@contextmanager
def failures_named(name: str, args: tuple[object, ...]) -> Iterator[None]:
    """Inside, TorchDynamo's failures to capture the function `name` become chainstay's own.

    Modules among its `args` may be what no graph can have.
    """
    from torch._dynamo import exc  # noqa: PLC0415  # takes more than a second

    random_state = torch.get_rng_state()
    try:
        yield
    except UnknownCallError:
        raise UnsupportedModelError(
            f"TorchDynamo is switched off (torch.compiler.set_stance, TORCHDYNAMO_DISABLE), "
            f"so {name} cannot be captured and would train without a plan; switch it on, "
            "or call chainstay.unfit(model)"
        ) from None
    except exc.BackendCompilerFailed as failure:
        raise failure.inner_exception from None
    except exc.FailOnRecompileLimitHit as failure:
        raise UnsupportedModelError(
            f"{name} needs more than {_MOST_GRAPHS} graphs, because what its forward "
            f"reads differs from call to call ({_last_line(failure)}); keep that constant, or "
            "keep it in a tensor"
        ) from failure
    except exc.TorchDynamoException as failure:
        raise NoFullGraphError(_reason(failure, args)) from failure
    except NotRunError:
        torch.set_rng_state(random_state)  # torch 2.6 draws NumPy's numbers from it in tracing
        raise
    except ChainstayError:
        raise
    except Exception as failure:
        if _SKIPPED in str(failure):
            raise UnsupportedModelError(
                f"TorchDynamo does not look at {name} in this place "
                f"({_skipped(failure)}); leave that out, or call chainstay.unfit(model)"
            ) from failure
        if not _is_from_tracing(failure):
            raise
        text = f"{type(failure).__name__}: {_reason(failure, args)}"
        raise NoFullGraphError(f"TorchDynamo fails on {name} ({text})") from failure


@contextmanager
def tracing_settings(leaves: Sequence[object]) -> Iterator[None]:
    """Inside, TorchDynamo traces as a plan needs it, and says nothing; guards keep its settings.

    Sizes of tensors among the `leaves` of the call's arguments become part of the graph.
    """
    from torch._dynamo import config  # noqa: PLC0415  # takes more than a second

    known: dict[str, Any] = {k: value for k, value in _SETTINGS.items() if hasattr(config, k)}
    if hasattr(config, "ignore_logger_methods"):
        known["ignore_logger_methods"] = {*config.ignore_logger_methods, *_logging_functions()}
    if hasattr(config, "reorderable_logging_functions"):
        reordered = {*config.reorderable_logging_functions, print, warnings.warn}
        known["reorderable_logging_functions"] = reordered
    with config.patch(**known), _attention_apart(), _quiet(), _static(leaves), ExitStack() as stack:
        for change in list(tracer_patches()):
            stack.enter_context(change)
        yield


def constant_numbers() -> AbstractContextManager[object]:
    """Inside, whole numbers are constants of a graph, whether or not they differed before."""
    from torch._dynamo import config  # noqa: PLC0415  # takes more than a second

    patched: AbstractContextManager[object] = config.patch(specialize_int=True)
    return patched


@contextmanager
def _attention_apart() -> Iterator[None]:
    """Inside, attention is traced into its operators, each of which can be kept or made again."""
    from torch._dynamo import trace_rules, variables  # noqa: PLC0415  # takes more than a second

    rules: dict[Any, Any] = trace_rules.get_torch_obj_rule_map()
    apart: dict[Any, Any] = {
        functional.multi_head_attention_forward: variables.UserFunctionVariable
    }
    if check := getattr(functional, "_check_key_padding_mask", None):  # not to be traced itself
        apart[check] = variables.TorchInGraphFunctionVariable
    before = {function: rules[function] for function in apart if function in rules}
    rules.update(apart)
    try:
        yield
    finally:
        for function in apart:
            rules.pop(function, None)
        rules.update(before)


def _logging_functions() -> frozenset[Callable[..., Any]]:
    """Return the logging functions that a graph may leave out, since it needs nothing of them."""
    names = ("debug", "info", "warning", "warning_once", "warning_advice", "error")
    places = (logging, logging.Logger)
    return frozenset(
        getattr(place, name) for place in places for name in names if hasattr(place, name)
    )


def seeming_eager() -> AbstractContextManager[object]:
    """Inside, code that is traced and asks whether it is gets the answer no."""
    from torch._dynamo.variables import torch as traced  # noqa: PLC0415  # takes more than a second

    table: Any = traced.tracing_state_functions  # a function but in early versions, a table there
    answers: dict[Any, Any] = table() if callable(table) else table
    return patch.dict(
        answers,
        dict.fromkeys((function for function in answers if answers[function] is True), False),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings while it traces; a failure tells all there is to know."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _static(leaves: Sequence[object]) -> Iterator[None]:
    """Sizes of these tensors are part of a graph: a plan holds for one shape."""
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    with ExitStack() as stack:
        for tensor in tensors.values():
            if hasattr(tensor, "_dynamo_static_indices"):
                continue  # the user's own
            tensor._dynamo_static_indices = set(range(tensor.dim()))  # type: ignore[attr-defined]  # noqa: SLF001  # what mark_static does
            stack.callback(delattr, tensor, "_dynamo_static_indices")
        yield


def _reason(failure: Exception, args: tuple[object, ...]) -> str:
    """Return the reason why there is no full graph, in one line."""
    lines = [line.strip() for line in str(failure).strip().splitlines() if line.strip()]
    first = lines[0].rstrip(".") if lines else type(failure).__name__
    details = [line.partition(": ")[2].rstrip(".") for line in lines if line.startswith("Expl")]
    places = [line for line in lines if line.startswith('File "')]
    text = f"{first}: {details[0]}" if details else first
    if details and details[0].startswith(first):
        text = details[0]
    known = (reason for pattern, reason in _REASONS.items() if re.search(pattern, text))
    if reason := next(known, ""):
        text = reason.format(scripted=_scripted_in(args))
    raised = [line.partition("raised exception ")[2] for line in lines if _RAISED in line]
    if raised:
        text = f"{RAISES}{_CONSTANTS.sub(_as_written, raised[0])}"
    elif text == _OBSERVED:
        text = f"{RAISES}an exception"
    elif text.startswith(_FAILED) and len(lines) > 1:
        text = f"{RAISES}{lines[1].rstrip('.')}"
    elif _WITH_FAKES in text and ": got " in text:
        text = f"{RAISES}{text.rpartition(': got ')[2]}"
    if places:
        file, _, rest = places[-1].removeprefix('File "').partition('", line ')
        number, _, function = rest.partition(", in ")
        text += f" ({file.rsplit('/', 1)[-1]}:{number}, in {function})"
    return text


def _as_written(constants: re.Match[str]) -> str:
    """Return the arguments of an exception as the model wrote them."""
    return re.sub(r"ConstantVariable\(\w+: (.*?)\)(, |$)", r"\1\2", constants[1])


def _scripted_in(args: tuple[object, ...]) -> str:
    """Return the paths of the outermost scripted modules in these modules, for people."""
    found: list[str] = []
    for root in args:
        modules = root.named_modules() if isinstance(root, torch.nn.Module) else ()
        found += outermost([p for p, m in modules if isinstance(m, torch.jit.ScriptModule)])
    if not found or not found[0]:
        return "a module"
    return f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0]


def _is_from_tracing(failure: Exception) -> bool:
    """Whether TorchDynamo raised it, and not what it has traced."""
    frames = walk_tb(failure.__traceback__)
    return any(frame.f_code.co_filename.endswith(_TRACER) for frame, _ in frames)


def _skipped(failure: Exception) -> str:
    """Return why TorchDynamo skipped a function; of several frames, the function's is first."""
    found = [line.partition("): ")[2] for line in str(failure).splitlines() if "): " in line]
    return found[0].partition(", ")[0] if found else "for a reason of its own"


def _last_line(failure: Exception) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if "last reason" in line]
    return lines[-1] if lines else type(failure).__name__
