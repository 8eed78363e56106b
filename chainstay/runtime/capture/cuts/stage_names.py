"""Paths of the modules of a model, and names for ranges of operators: the modules that they run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from torch import fx, nn

_MOST_NAMES = 2

_ROOT: Final = re.compile(r"^L\['(args'\]\[0|self'|function')\]\.?")
"""The source under which TorchDynamo finds the model itself."""

_MODULES: Final = re.compile(r"(^|\.)(__dict__\['_modules'\]|_modules\b)")
"""Where it finds modules, the former in a forward that changes attributes of the model."""


def module_paths(node: fx.Node) -> tuple[str, ...]:
    """Return the modules whose forward runs `node`, outermost first, without the model."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = (_path_of(str(path)) for path, _ in stack.values())
    return tuple(path for path in paths if path)


def _path_of(source: str) -> str:
    """Return ``layers.0.fc`` of ``L['function'].__self__.layers[0].fc``."""
    path = _ROOT.sub("", source.partition("@")[0])  # one that is called again has "@1" behind
    path = _MODULES.sub("", path).replace("['", ".").replace("']", "")
    return path.replace("[", ".").replace("]", "").strip(".")


def modules_around(path: str) -> list[str]:
    """Return the paths of the modules that a module lies in: the model's, ``""``, is the first."""
    names = path.split(".") if path else []
    return [".".join(names[:count]) for count in range(len(names))]


def outermost(paths: Collection[str]) -> list[str]:
    """Return the paths of those modules that lie in no other one of them."""
    return [path for path in paths if not any(outer in paths for outer in modules_around(path))]


def name_ranges(ranges: Sequence[Sequence[fx.Node]]) -> tuple[str, ...]:
    """Return a name for each range of a graph's operators.

    A range is named after the largest modules that run in it and nowhere else; if there are
    none, after the module that runs most of it, of which it is a part.
    """
    everywhere = Counter(path for nodes in ranges for node in nodes for path in module_paths(node))
    names = [_name(nodes, everywhere) for nodes in ranges]
    occurrences = Counter(names)
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if occurrences[name] > 1 else name)
    return tuple(numbered)


def _name(nodes: Sequence[fx.Node], everywhere: Counter[str]) -> str:
    here = Counter(path for node in nodes for path in module_paths(node))
    whole: dict[str, None] = {}
    for node in nodes:
        inside = (path for path in module_paths(node) if here[path] == everywhere[path])
        largest = next(inside, None)
        if largest is not None:
            whole[largest] = None
    first, *others = whole or [""]
    if len(others) >= _MOST_NAMES:
        return f"{first}..{_beside(first, others[-1])}"
    if first:
        return "+".join([first, *(_beside(first, name) for name in others)])
    deepest = Counter(paths[-1] for paths in map(module_paths, nodes) if paths)
    return f"part of {deepest.most_common(1)[0][0]}" if deepest else "model"


def _beside(first: str, path: str) -> str:
    """Return `path` without the modules in which both it and `first` are."""
    parts = path.split(".")
    common = takewhile(lambda pair: pair[0] == pair[1], zip(first.split("."), parts, strict=False))
    return ".".join(parts[len(list(common)) :])


def repeated_blocks(model: nn.Module) -> frozenset[str]:
    """Return the paths of the modules in containers that hold modules of one class only."""
    children = list(listed_children(model))
    kinds: dict[str, set[type]] = {}
    for path, child in children:
        kinds.setdefault(container_of(path), set()).add(type(child))
    return frozenset(path for path, _ in children if len(kinds[container_of(path)]) == 1)


def listed_children(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in the model's containers, with their paths."""
    for container, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for name, child in module.named_children():
                yield f"{container}.{name}" if container else name, child


def container_of(path: str) -> str:
    """Return the path of the module that a module lies right inside of."""
    return path.rpartition(".")[0]


def block_of(node: fx.Node, blocks: Iterable[str]) -> str | None:
    """Return the innermost of `blocks` that runs `node`; outside of all, its innermost module."""
    paths = module_paths(node)
    inside = [path for path in paths if path in blocks]
    if inside:
        return inside[-1]
    return paths[-1] if paths else None
