"""A function as the graph of its torch operators, traced and guarded by TorchDynamo.

TorchDynamo reads the function's Python without running it, and calls a backend with the
graph of all torch functions in it. Whatever the trace read (attributes, arguments, globals,
modes) is guarded: a call that differs is traced again. Python side effects, appending to a
list for instance, are replayed after the graph has run.

`GraphCapture` keeps to three rules. There is one full graph per call or none: a graph break
would let part of the function run unseen. Nothing but captured code ever runs here: where
no captured graph fits, `GraphCapture.run` raises, and where TorchDynamo is switched off,
capturing does. And each function has a code object of its own, since TorchDynamo limits the
number of graphs per code object, and models of one class would share it.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from types import FunctionType, MappingProxyType
from typing import Any, Final

import torch
from torch import fx
from torch._guards import TracingContext
from torch.nn.modules import module
from torch.utils._pytree import tree_leaves

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.runtime.capture.graph import stage_border
from chainstay.runtime.capture.trials.dispatch_modes import in_modes, modes_set_aside

__all__ = ["CapturedForward", "GraphCapture", "NoFullGraphError", "NotRunError", "UnknownCallError"]

CapturedForward = Callable[..., Sequence[Any]]
"""Runs a captured graph: takes its inputs, gives its outputs."""

Receiver = Callable[[fx.GraphModule, Sequence[Any]], CapturedForward]
"""Takes a graph and the inputs of the call it was traced on; says how it is to be run."""

_MOST_GRAPHS: Final = 256
"""Graphs per function. Every call looks through those there are, so more would be slow."""

_SETTINGS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "skip_nnmodule_hook_guards": False,  # a hook that is added later must be seen
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

_SKIPPED: Final = "found no compiled frames"
"""What torch.compile says where it has run nothing, in a message without a class of its own."""

_DRAWS: Final = r"\bRandom\.\w+|\bnumpy\.random\b"
_DECIDES: Final = (
    "data-dependent (expression|branching)|Could not extract specialized"
    "|Dynamic control flow is not"  # by torch 2.6
)

_TRACER: Final = "_dynamo/convert_frame.py"

_RAISED: Final = "context: raised exception "
"""What TorchDynamo says where the traced code raises."""

_WITH_FAKES: Final = "fake tensor"
"""Likewise where an operator does; a list of all its arguments follows."""

_numbers = count(1)
_tracing = threading.local()


class NotRunError(Exception):
    """A captured graph was not run, so the call can be made again."""


class UnknownCallError(NotRunError):
    """No captured graph is for this call."""


class NoFullGraphError(UnsupportedModelError):
    """TorchDynamo cannot trace the function into one graph; the text says where and why."""


class GraphCapture:
    """The graphs of one function, by kind of call.

    Args:
        function: Takes whatever `run` is called with.
        receive: Called with each new graph and the inputs it was traced on.
        name: The name of the function, for messages.
        admits_tracing: What the function is told when it asks whether it is traced, attempt by
            attempt.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        receive: Receiver,
        name: str,
        *,
        admits_tracing: tuple[bool, ...] = (True, False),
    ) -> None:
        import torch._dynamo  # noqa: PLC0415  # takes more than a second: not before it is needed

        def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedForward:
            return in_modes(receive(graph, inputs))

        code = _guarded.__code__.replace(co_name=f"chainstay_{next(_numbers)}")
        own = FunctionType(code, _guarded.__globals__, code.co_name)
        self._function = function
        self._receive = receive
        self._name = name
        self._known = torch._dynamo.run(own)  # noqa: SLF001  # no public way to run known code only
        self._traced = torch.compile(own, backend=backend, fullgraph=True, dynamic=None)
        self._admits_tracing = admits_tracing
        torch.compiler.allow_in_graph(stage_border)

    def run(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # whatever the function returns
        """Run the captured graph for such a call, and what the function does around it.

        Raises:
            UnknownCallError: There is none; nothing was run.
        """
        with modes_set_aside(), _numbers_drawn_once():
            return self._known(self._function, args, kwargs, _global_hooks())

    def capture(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # likewise
        """Trace such a call, then run it.

        A model may ask whether it is being traced, and take another way then. It is told the
        truth first, for which libraries are made; if that way has no full graph, that it is not.

        Raises:
            NoFullGraphError: The function cannot be traced into one graph.
            UnsupportedModelError: The function has too many graphs, or TorchDynamo is off.
            ChainstayError: Whatever `receive` or the captured graph's `CapturedForward` raises.
        """
        first, *others = self._admits_tracing
        try:
            return self._capture(args, kwargs, admits_tracing=first)
        except NoFullGraphError as reason:
            for other in others:
                with suppress(NoFullGraphError):
                    return self._capture(args, kwargs, admits_tracing=other)
            raise reason from reason.__cause__

    def denying(self) -> GraphCapture | None:
        """Another capture, whose function is never told that it is traced; ``None`` if it is not.

        For a model whose graph, traced in the usual way, is not the model.
        """
        if self._admits_tracing == (False,):
            return None
        return GraphCapture(self._function, self._receive, self._name, admits_tracing=(False,))

    def _capture(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, admits_tracing: bool
    ) -> Any:  # noqa: ANN401  # whatever the function returns
        with self._told_by_name(), _settings(), _quiet(), _static(tree_leaves((args, kwargs))):
            if admits_tracing:
                return self._trace(args, kwargs)
            with _seeming_eager():
                return self._trace(args, kwargs)

    def _trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the model's own
        _tracing.active = True
        try:
            with modes_set_aside(), _numbers_drawn_once():
                return self._traced(self._function, args, kwargs, _global_hooks())
        finally:
            _tracing.active = False

    @contextmanager
    def _told_by_name(self) -> Iterator[None]:
        from torch._dynamo import exc  # noqa: PLC0415  # as above

        try:
            yield
        except UnknownCallError:
            raise UnsupportedModelError(
                f"TorchDynamo is switched off (torch.compiler.set_stance, TORCHDYNAMO_DISABLE), "
                f"so {self._name} cannot be captured and would train without a plan; switch it on, "
                "or call chainstay.unfit(model)"
            ) from None
        except exc.BackendCompilerFailed as failure:
            raise failure.inner_exception from None
        except _limit_errors() as failure:
            raise UnsupportedModelError(
                f"{self._name} needs more than {_MOST_GRAPHS} graphs, because what its forward "
                f"reads differs from call to call ({_last_line(failure)}); keep that constant, or "
                "keep it in a tensor"
            ) from failure
        except exc.TorchDynamoException as failure:
            raise NoFullGraphError(_reason(failure)) from failure
        except (ChainstayError, NotRunError):
            raise
        except Exception as failure:
            if _SKIPPED in str(failure):
                raise UnsupportedModelError(
                    f"TorchDynamo does not look at {self._name} in this place "
                    f"({_skipped(failure)}); leave that out, or call chainstay.unfit(model)"
                ) from failure
            if not _is_from_tracing(failure):
                raise
            text = f"{type(failure).__name__}: {_reason(failure)}"
            raise NoFullGraphError(f"TorchDynamo fails on {self._name} ({text})") from failure


@contextmanager
def _numbers_drawn_once() -> Iterator[None]:
    """Traced code draws Python's random numbers in front of its graph, whether that runs or not."""
    state = random.getstate()
    try:
        yield
    except NotRunError:
        random.setstate(state)
        raise


def _guarded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], hooks: str
) -> Any:  # noqa: ANN401  # the model's own
    """`function`, as traced code; run as it is, it refuses before it has done anything.

    What the traced code asks `hooks` for becomes a guard: TorchDynamo has none for hooks of all
    modules.
    """
    if not _is_traced() or hooks == "unknown":
        raise UnknownCallError
    return function(*args, **kwargs)


def _global_hooks() -> str:
    """Return the numbers of all global module hooks, each of which torch gives out once."""
    tables = (
        module._global_forward_pre_hooks,  # noqa: SLF001  # no public way to see them
        module._global_forward_hooks,  # noqa: SLF001  # likewise
        module._global_backward_pre_hooks,  # noqa: SLF001  # likewise
        module._global_backward_hooks,  # noqa: SLF001  # likewise
    )
    return str([list(table) for table in tables]) if any(tables) else ""


def _is_traced() -> bool:
    """True in traced code, where it was asked once; TorchDynamo keeps the answer."""
    is_wanted = getattr(_tracing, "active", False)
    return is_wanted and TracingContext.try_get() is not None  # else TorchDynamo is switched off


_is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001  # as assume_constant_result does, without importing torch._dynamo


@contextmanager
def _settings() -> Iterator[None]:
    """TorchDynamo's settings while it traces; the guards it makes keep them."""
    from torch._dynamo import config  # noqa: PLC0415  # takes more than a second

    known: dict[str, Any] = {k: value for k, value in _SETTINGS.items() if hasattr(config, k)}
    if hasattr(config, "ignore_logger_methods"):
        known["ignore_logger_methods"] = {*config.ignore_logger_methods, *_logging_methods()}
    if hasattr(config, "reorderable_logging_functions"):
        reordered = {*config.reorderable_logging_functions, print, warnings.warn}
        known["reorderable_logging_functions"] = reordered
    with config.patch(**known), _no_drawn_constants():
        yield


@contextmanager
def _no_drawn_constants() -> Iterator[None]:
    """Inside, ``random.Random`` objects are not traced: their numbers would become constants."""
    from torch._dynamo import variables  # noqa: PLC0415  # takes more than a second

    traced: Any = getattr(variables, "RandomVariable", None)
    known = None if traced is None else vars(traced).get("is_supported_random_obj")
    if known is None:
        yield
        return
    traced.is_supported_random_obj = staticmethod(lambda _: False)
    try:
        yield
    finally:
        traced.is_supported_random_obj = known


def _logging_methods() -> frozenset[Callable[..., Any]]:
    """Return the logging methods that a graph may leave out, since it needs nothing of them."""
    names = ("debug", "info", "warning", "warning_once", "warning_advice", "error")
    return frozenset(
        getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)
    )


@contextmanager
def _seeming_eager() -> Iterator[None]:
    """Inside, code that is traced and asks whether it is gets the answer no."""
    from torch._dynamo.variables import torch as traced  # noqa: PLC0415  # takes more than a second

    table: Any = traced.tracing_state_functions  # a function but in early versions, a table there
    answers: dict[Any, Any] = table() if callable(table) else table
    kept = dict(answers)
    answers.update((question, False) for question, answer in kept.items() if answer is True)
    try:
        yield
    finally:
        answers.update(kept)


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


def _limit_errors() -> tuple[type[Exception], ...]:
    """Return the errors that versions of torch raise when a function has too many graphs."""
    from torch._dynamo import exc  # noqa: PLC0415  # takes more than a second

    names = ("FailOnRecompileLimitHit", "RecompileLimitExceeded", "FailOnCacheLimitHit")
    return tuple(getattr(exc, name) for name in names if hasattr(exc, name))


def _reason(failure: Exception) -> str:
    """Return the reason why there is no full graph, in one line."""
    lines = [line.strip() for line in str(failure).strip().splitlines() if line.strip()]
    first = lines[0].rstrip(".") if lines else type(failure).__name__
    details = [line.partition(": ")[2].rstrip(".") for line in lines if line.startswith("Expl")]
    places = [line for line in lines if line.startswith('File "')]
    text = f"{first}: {details[0]}" if details else first
    if re.search(_DRAWS, text):
        text = (
            "it draws from Python's random or from NumPy, which no graph can; draw from torch, or "
            "in front of the model"
        )
    elif re.search(_DECIDES, text, re.IGNORECASE):
        text = (
            "Data-dependent branching: it decides by the value of a tensor or of NumPy's; decide "
            "by a Python bool or number that the module keeps"
        )
    raised = [line.partition("raised exception ")[2] for line in lines if _RAISED in line]
    if raised:
        text = f"it raises {raised[0]}"
    elif _WITH_FAKES in text and ": got " in text:
        text = f"it raises {text.rpartition(': got ')[2]}"
    if places:
        file, _, rest = places[-1].removeprefix('File "').partition('", line ')
        number, _, function = rest.partition(", in ")
        text += f" ({file.rsplit('/', 1)[-1]}:{number}, in {function})"
    return text


def _is_from_tracing(failure: Exception) -> bool:
    """Whether TorchDynamo raised it, and not what it has traced."""
    frame = failure.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.endswith(_TRACER):
            return True
        frame = frame.tb_next
    return False


def _skipped(failure: Exception) -> str:
    """Return why TorchDynamo skipped a function; of several frames, the function's is first."""
    found = [line.partition("): ")[2] for line in str(failure).splitlines() if "): " in line]
    return found[0].partition(", ")[0] if found else "for a reason of its own"


def _last_line(failure: Exception) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if "last reason" in line]
    return lines[-1] if lines else type(failure).__name__
