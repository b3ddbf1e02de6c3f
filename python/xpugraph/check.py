# SPDX-License-Identifier: MIT
"""The check: every recorded graph against one eager run on the largest batch, by value.

Each graph is replayed three times on rows it was not recorded with: full, padded (fewer rows than recorded), and full
again with another window of rows. A graph that differs from eager *for those very rows* is wrong and is dropped. When
eager itself gives other values for the same rows depending on which rows come with them, the rows depend on each other:
then no padding and no chunking can be right, and the build fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from .batching import take_rows
from .call import TensorArgument, is_integer
from .errors import BuildError
from .precision import tf32_noise

Tensors = Sequence[torch.Tensor]

# Recorded sizes run other kernels than the largest batch does, so bits differ (vllm-project/vllm#28131); wrong results
# differ by orders of magnitude more than this.
_TOLERANCE = {
    torch.float64: (1e-6, 1e-8),
    torch.complex128: (1e-6, 1e-8),
    torch.float32: (1e-3, 1e-4),
    torch.complex64: (1e-3, 1e-4),
    torch.float16: (1e-2, 5e-3),
    torch.bfloat16: (3e-2, 2e-2),
}


_ROUNDINGS = 8  # of values near 1, which cancel where a result is small


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """|graph − eager| ≤ atol · scale + rtol · |eager|; None: a default for the dtype.

    The scale of a given `atol` is the largest |eager| or 1, whichever is more. That of the default is the largest
    |eager|, so that small results are compared too, and allows at least the rounding of values near 1.
    """

    rtol: float | None = None
    atol: float | None = None
    exact_integers: bool = False

    def worst(self, got: torch.Tensor, expected: torch.Tensor, noise: float = 0.0) -> float:
        """Largest error over what is allowed: at most 1 when the values agree, inf when NaN or infinities do not.

        Args:
            got: What is judged.
            expected: What is right.
            noise: By how much right values may differ beside the tolerance.
        """
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return float("inf")
        if got.numel() == 0:
            return 0.0
        if not (got.dtype.is_floating_point or got.dtype.is_complex):
            return 0.0 if self._few_flips(got, expected) else float("inf")
        rtol, atol = _TOLERANCE.get(got.dtype, (3e-2, 2e-2))
        rtol, atol = self.rtol if self.rtol is not None else rtol, self.atol if self.atol is not None else atol
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        a, b = got.to(wide), expected.to(wide)
        finite = torch.isfinite(b)
        same_elsewhere = (a == b) | (a.isnan() & b.isnan())
        if not bool((torch.isfinite(a) == finite).all()) or not bool(same_elsewhere[~finite].all()):
            return float("inf")
        if not bool(finite.any()):
            return 0.0
        a, b = a[finite], b[finite]
        largest = float(b.abs().max())
        if self.atol is None:
            absolute = max(atol * largest, _ROUNDINGS * torch.finfo(got.dtype).eps)
        else:
            absolute = atol * max(1.0, largest)
        allowed = absolute + noise + rtol * b.abs()
        error = (a - b).abs()
        return float(torch.where(error == 0, 0.0, error / allowed).max())

    def _few_flips(self, got: torch.Tensor, expected: torch.Tensor) -> bool:
        """Rounding and argmax may flip where values tie, in one of 200 values; but no row may be wrong as a whole.

        A row of a single value may be off by one, which rounding explains and another index does not.
        """
        flipped = got != expected
        count = int(flipped.sum())
        if count == 0 or self.exact_integers or count > got.numel() // 200:
            return count == 0
        rows = flipped.reshape(got.shape[0], -1)
        whole = rows.all(1)
        near = (got.double() - expected.double()).abs().reshape(got.shape[0], -1).amax(1) <= 1
        return not bool((whole & ~near).any())


_BAD_INDEX_IS_FATAL = ("cuda", "xpu")  # an assertion on the device, after which the process can use it no more


# Other floating-point values for an item: of the first item, or of the last.
Poison = Callable[[torch.Tensor, bool], torch.Tensor]


def _not_finite(item: torch.Tensor, first: bool) -> torch.Tensor:
    return torch.full_like(item, float("nan") if first else float("inf"))


def _negated(item: torch.Tensor, first: bool) -> torch.Tensor:
    return item * -0.5


def _halved(item: torch.Tensor, first: bool) -> torch.Tensor:
    return item * 0.5


@dataclasses.dataclass
class Checker:
    """Checks sizes one by one.

    Attributes:
        arguments: The tensors of a call.
        outputs: Name, batch dimension and rows per item of every result, as pseudo-arguments.
        inputs: Fresh inputs of the largest batch, on the device.
        eager: Runs the module on a list of tensors; returns its results, then the arguments it wrote to.
        graph: The same through the graphs.
        tolerance: What counts as equal.
        rows: How many rows `inputs` have.
        device: Where eager runs.
        casts_to_integers: The forward makes integers of floats, which may be indices.
        noise: By how much each result may differ for TF32's sake; None: measured now.
    """

    arguments: Sequence[TensorArgument]
    outputs: Sequence[TensorArgument]
    inputs: Tensors
    eager: Callable[[Tensors], list[torch.Tensor]]
    graph: Callable[[Tensors], list[torch.Tensor]]
    tolerance: Tolerance
    rows: int
    device: torch.device
    casts_to_integers: bool = False
    noise: list[float] | None = None

    def __post_init__(self) -> None:
        self._reference = self._run(self.eager, 0, self.rows)
        if self.noise is None:
            self.noise = tf32_noise(self.device, self._reference, lambda: self._run(self.eager, 0, self.rows))
        floats = [r for r in self._reference if r.dtype.is_floating_point and r.numel()]
        if floats and not any(bool(torch.isfinite(r).any()) for r in floats):
            raise BuildError(
                "eager itself returns no finite value on random rows drawn from the samples, so nothing can be "
                "checked; give samples that are like the real input"
            )

    def size(self, size: int, previous: int) -> str | None:
        """Checks one recorded size; `previous` is the next smaller one (0: none).

        Returns:
            Why the graph is wrong, or None when it is right.

        Raises:
            BuildError: The rows of a batch depend on each other.
        """
        fewest = previous + 1
        windows = [(0, size), ((self.rows - fewest) // 2, fewest), (self.rows - size, size)]
        for start, count in windows:
            got = self._run(self.graph, start, count)
            if self._worst(got, start, count)[0] <= 1.0:
                continue
            exact = self._run(self.eager, start, count)
            depends, detail = self._worst(exact, start, count)
            if depends > 1.0:
                self._need_repeatable()
                raise BuildError(
                    "the rows of a batch depend on each other: eager itself gives other values for the same rows in a "
                    f"batch of {count} than in one of {self.rows} ({detail}). Neither padding nor chunks can be right "
                    "for such a module"
                )
            wrong, detail = self._compare(got, exact)
            if count < size and wrong > 1.0:
                raise BuildError(
                    f"padding {count} rows to {size} changes the real rows ({detail}): the forward computes something "
                    "over the batch dimension, so a padded batch cannot be right"
                )
            return f"differs from eager: {detail or 'by more than the tolerance'}"
        return None

    def plan(self, count: int) -> str | None:
        """Checks a batch that is not served by its next recorded size alone.

        Returns:
            Why what serves it is wrong, or None when it is right.
        """
        for start in (0, self.rows - count):
            got = self._run(self.graph, start, count)
            if self._worst(got, start, count)[0] <= 1.0:
                continue
            wrong, detail = self._compare(got, self._run(self.eager, start, count))
            if wrong > 1.0:
                return f"batch size {count} differs from eager: {detail}"
        return None

    def isolation(self) -> None:
        """Rows must not see each other: eager runs again with other values in the first and the last row.

        NaN and infinity show in whatever mixes rows (means, norms, maxima, flags over the batch), so that this finds
        what a comparison of ordinary values lets pass.

        Raises:
            BuildError: A row in between changed.
        """
        # Where a bad index ends the process, floats that become indices must stay within what they were.
        tame = self.casts_to_integers and self.device.type in _BAD_INDEX_IS_FATAL
        others = {start: self._farthest_item(start) for start in (0, self.rows - 1)}
        for poison in (_halved,) if tame else (_not_finite, _negated):
            values = self._eager_on_others(poison, others)
            if values is None:
                continue
            count = self.rows - 2
            between = [
                take_rows(v, o, 1, count) if v.shape == r.shape else v
                for v, r, o in zip(values, self._reference, self.outputs, strict=True)
            ]
            exact = dataclasses.replace(self.tolerance, exact_integers=True)
            wrong, detail = self._worst(between, 1, count, exact)
            if wrong > 1.0:
                self._need_repeatable()
                raise BuildError(
                    "the rows of a batch depend on each other: other values in the first and last row change the rows "
                    f"in between ({detail}). Neither padding nor chunks can be right for such a module"
                )

    def _eager_on_others(self, poison: Poison, others: dict[int, int]) -> list[torch.Tensor] | None:
        """Eager with other values in the first and last item; None when the forward takes no such values."""
        # A forward that refuses other integers must not hide what floats would tell.
        attempts = (others, {}) if any(is_integer(x.dtype) for x in self.inputs) else ({},)
        for replaced in attempts:
            rows = [self._poisoned(x, a, poison, replaced) for x, a in zip(self.inputs, self.arguments, strict=True)]
            try:
                return [value.detach().cpu() for value in self.eager(rows)]
            except Exception:  # noqa: BLE001, S112  the next ones are tamer
                continue
        return None

    def _farthest_item(self, start: int) -> int:
        """The item whose integers differ most from those of item `start`. All of them are valid, and fit each other."""
        score = torch.zeros(self.rows, dtype=torch.float64)
        for x, argument in zip(self.inputs, self.arguments, strict=True):
            if argument.batch_dim is None or not is_integer(x.dtype) or not x.numel():
                continue
            items = x.cpu().to(torch.int64).movedim(argument.batch_dim, 0).reshape(self.rows, -1)
            distance = (items.double() - items[start].double()).abs().sum(1)
            score += (items != items[start]).double().mean(1) + 0.5 * distance / distance.max().clamp(min=1.0)
        return int(score.argmax())

    def _poisoned(
        self, x: torch.Tensor, argument: TensorArgument, poison: Poison, others: dict[int, int]
    ) -> torch.Tensor:
        """A copy of `x` with other values in the first and last item: `poison` of floats, another item's integers.

        Args:
            x: The tensor.
            argument: What it is.
            poison: For floating-point values.
            others: Which item's integers come in place of those of an item.
        """
        changed = x.clone()
        if argument.batch_dim is None:
            return changed
        for start in (0, self.rows - 1):
            item = take_rows(changed, argument, start, 1)
            if x.dtype.is_floating_point or x.dtype.is_complex:
                item.copy_(poison(item, start == 0))
            elif x.dtype is torch.bool:
                item.copy_(item.logical_not())
            elif start in others:
                other = take_rows(x, argument, others[start], 1)
                if not torch.equal(other, item):
                    item.copy_(other)
                elif poison is _negated or self.device.type in _BAD_INDEX_IS_FATAL:
                    item.zero_()  # of a constant sample; padding rows are 0
                else:
                    item.add_(1)  # which the forward may refuse, where that is no harm
        return changed

    def dropped(self, size: int) -> None:
        """A dropped size is served by larger graphs, so eager must give the same rows there as in a larger batch.

        Raises:
            BuildError: It does not. A size that eager refuses too is no contradiction.
        """
        try:
            exact = self._run(self.eager, 0, size)
        except Exception:  # noqa: BLE001
            return
        wrong, detail = self._worst(exact, 0, size)
        if wrong > 1.0:
            raise BuildError(
                f"batch size {size} cannot be recorded, and eager gives other values there than in a batch of "
                f"{self.rows} ({detail}), so that no larger graph can serve it"
            )

    def _need_repeatable(self) -> None:
        wrong, detail = self._compare(self._run(self.eager, 0, self.rows), self._reference)
        if wrong > 1.0:
            raise BuildError(
                f"eager itself gives other values when it is called again with the same rows ({detail}): the forward "
                "keeps state between calls, and a graph would change it at every replay"
            )

    def _run(self, run: Callable[[Tensors], list[torch.Tensor]], start: int, count: int) -> list[torch.Tensor]:
        rows = [take_rows(x, a, start, count).clone() for x, a in zip(self.inputs, self.arguments, strict=True)]
        return [value.detach().cpu() for value in run(rows)]

    def _worst(self, got: Tensors, start: int, count: int, tolerance: Tolerance | None = None) -> tuple[float, str]:
        window = [take_rows(r, o, start, count) for r, o in zip(self._reference, self.outputs, strict=True)]
        return self._compare(got, window, tolerance)

    def _compare(self, got: Tensors, expected: Tensors, tolerance: Tolerance | None = None) -> tuple[float, str]:
        found = (0.0, "")
        for output, a, b, noise in zip(self.outputs, got, expected, self.noise or [], strict=True):
            worst = (tolerance or self.tolerance).worst(a, b, noise)
            if worst > found[0]:
                found = (worst, f"{output.name} by up to {_largest_error(a, b):.3g}")
        return found


def _largest_error(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    return float((a.to(wide) - b.to(wide)).abs().nan_to_num(nan=float("inf")).max())
