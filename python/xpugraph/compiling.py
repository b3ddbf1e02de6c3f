# SPDX-License-Identifier: MIT
"""A module compiled by Torch Inductor for every batch size of a recording, in as few compilations as it takes."""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from . import inductor_hooks
from .call import Argument, TensorArgument, rebuild_call
from .errors import BuildError
from .probe import storage

MOST_COMPILATIONS = 3
_numbers = itertools.count()


class InductorError(BuildError):
    """A module that Inductor does not compile; the plain graph may still serve it."""


class Compiled:
    """One module behind Inductor, called with the tensors of a recorded call.

    Batch size 1 is compiled on its own, since Dynamo fixes lengths of 1, and all other sizes together, with a variable
    batch dimension. A forward that treats batch sizes differently takes more; past `most` compilations a size raises.

    Dynamo's own state is left alone: what it keeps hangs on a function made for this object and goes with it, so that
    neither other models nor earlier builds count towards the recompile limit, and no configuration is changed for good.

    Attributes:
        kept: What captures read beside their inputs (weights, buffers, tensors of closures), one tensor a storage.

    Threads: one at a time.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arguments: Sequence[Argument],
        tensors: Sequence[TensorArgument],
        device: torch.device,
        most: int = MOST_COMPILATIONS,
    ) -> None:
        inductor_hooks.register(device.type)
        if inductor_hooks.is_disabled():
            raise InductorError("torch.compile is disabled in this process (TORCHDYNAMO_DISABLE or its config)")
        self._arguments, self._tensors = arguments, tensors
        self._backend = InductorCompiler(inductor_hooks.compile_options(device.type) | {"triton.cudagraphs": False})
        self._run = torch.compile(fresh_entry(module), backend=self._backend, fullgraph=True)
        self._most = most
        self._failures = 0
        self.kept: dict[int, torch.Tensor] = {}

    @property
    def compiles(self) -> int:
        """Compilations so far; what other threads compile meanwhile is not among them, as in torch's own counter."""
        return self._backend.graphs

    def warm_up(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Runs the module on the inputs of one batch size, compiling what is missing.

        Raises:
            InductorError: It cannot be compiled, has a graph break (named), or needs one compilation too many.
        """
        spent = self.compiles + self._failures >= self._most
        try:
            return self._call(inputs, final=spent)
        except InductorError:
            self._failures += 1
            raise

    def capture(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Runs the module as it was compiled; what it reads is added to `kept`.

        Raises:
            InductorError: Something would have to be compiled.
        """
        known = {storage(tensor) for tensor in inputs}

        def look(tensors: Iterable[Any]) -> None:
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor) and (key := storage(tensor)) not in known:
                    self.kept.setdefault(key, tensor.detach() if tensor.requires_grad else tensor)

        self._backend.look = look
        try:
            return self._call(inputs, final=True)
        finally:
            self._backend.look = None

    def _call(self, inputs: Sequence[torch.Tensor], final: bool) -> Any:
        mark_batch(inputs, self._tensors)
        args, kwargs = rebuild_call(self._arguments, inputs)
        self._backend.start()
        try:
            with inductor_hooks.compiling(final):
                result = self._run(*args, **kwargs)
        except Exception as error:
            raise self._named(error, final) from error
        if not self._backend.ran():
            raise InductorError("torch.compile ran the forward without compiling anything of it")
        return result

    def _named(self, error: Exception, final: bool) -> Exception:
        """The error of a call: one of the compilation becomes an InductorError, the forward's own stays what it is."""
        if not inductor_hooks.is_of_compiler(error):
            return error
        reason = inductor_hooks.short_reason(error)
        if final and inductor_hooks.is_recompile(error):
            why = f"{self.compiles} compilations serve the sizes so far and no more are made"
            return InductorError(f"this batch size would have to be compiled on its own ({why}): {reason}")
        return InductorError(f"Inductor cannot compile the forward: {reason}")


class InductorCompiler:
    """A backend for torch.compile: Inductor, with a way to see its graphs run.

    Attributes:
        options: Inductor's, for this compiler alone.
        graphs: How many it has compiled.
        look: Called with the arguments of every graph that runs; None: nothing is.
    """

    __name__ = "xpugraph_inductor"

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.graphs = 0
        self.look: Callable[[Sequence[Any]], None] | None = None
        self._here = threading.local()

    def start(self) -> None:
        """Forgets, for the calling thread, that a graph ran."""
        self._here.ran = False

    def ran(self) -> bool:
        """Whether a compiled graph ran on the calling thread since start()."""
        return bool(getattr(self._here, "ran", False))

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compiles one graph."""
        run = inductor_hooks.compile_graph(graph, inputs, self.options)
        self.graphs += 1
        here = self._here

        def call(*args: Any) -> Any:
            here.ran = True
            if self.look is not None:
                self.look(args)
            return run(*args)

        return call


def mark_batch(inputs: Sequence[torch.Tensor], arguments: Sequence[TensorArgument]) -> None:
    """Lets the batch dimension of every input be of any length, except where it is 1, which is compiled on its own."""
    for tensor, argument in zip(inputs, arguments, strict=True):
        if argument.batch_dim is not None and tensor.shape[argument.batch_dim] > 1:
            inductor_hooks.mark_dynamic(tensor, argument.batch_dim)


def fresh_entry(module: torch.nn.Module) -> Callable[..., Any]:
    """A function that calls `module`, with a code object of its own.

    Dynamo keeps what it compiles by code object. The forward of a class like nn.Sequential is one code object for all
    its instances, and the ninth of them would exceed the recompile limit. What is compiled becomes a global variable of
    the function, so its globals are its own too.
    """

    def entry(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    code = entry.__code__.replace(co_name=f"xpugraph_forward_{next(_numbers)}")
    names = {name: entry.__globals__[name] for name in ("__name__", "__builtins__")}
    function = types.FunctionType(code, names, code.co_name, entry.__defaults__, entry.__closure__)
    inductor_hooks.forget_with(function)
    return function
