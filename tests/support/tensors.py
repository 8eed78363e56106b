"""Activations as sets of named tensors: sizes of unions and differences, counted one by one."""

from __future__ import annotations

from collections.abc import Collection

from chainstay.profiles import ChainProfile

__all__ = ["Tensors"]


class Tensors:
    """Which tensors the activations and gradients of a chain are made of."""

    def __init__(self, profile: ChainProfile) -> None:
        states = range(len(profile) + 1)
        skips = list(enumerate(profile.skips))
        self._in = {
            i: {f"own {i}"} | {f"skip {v}" for v, s in skips if i in s.states} for i in states
        }
        self._bytes = {f"skip {v}": skip.bytes for v, skip in skips}
        self._gradient_bytes = {f"skip {v}": skip.gradient_bytes for v, skip in skips}
        for i in states:
            shared = self._in[i] - {f"own {i}"}
            self._bytes[f"own {i}"] = profile.activation_bytes(i) - sum(
                self._bytes[name] for name in shared
            )
            self._gradient_bytes[f"own {i}"] = profile.gradient_bytes(i) - sum(
                self._gradient_bytes[name] for name in shared
            )
        self._stored = {f"a {i}": self._in[i] for i in states}
        for i, stage in enumerate(profile.stages):
            shared = self._in[i + 1] - {f"own {i + 1}"}
            made = sum(skip.bytes for skip in profile.skips if skip.first == i + 1)
            for k, option in enumerate(stage.all_options):
                self._stored[f"saved {i} {k}"] = {f"own saved {i} {k}"} | shared
                self._bytes[f"own saved {i} {k}"] = option.saved_bytes - made

    def added(self, i: int, beside: Collection[int]) -> int:
        """Bytes of ``a^i`` that no activation in `beside` has."""
        there = set().union(*(self._in[j] for j in beside))
        return sum(self._bytes[name] for name in self._in[i] - there)

    def stored(self, items: Collection[str]) -> int:
        """Bytes of activations (``"a 3"``) and saved data (``"saved 3 0"``: option 0) stored."""
        there = set().union(*(self._stored[item] for item in items))
        return sum(self._bytes[name] for name in there)

    def gradients(self, i: int) -> int:
        """Bytes of ``δ^i`` and ``δ^{i+1}``, which are in memory while ``B`` of stage i runs."""
        return sum(self._gradient_bytes[name] for name in self._in[i] | self._in[i + 1])
