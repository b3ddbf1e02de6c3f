# SPDX-License-Identifier: MIT
"""Every private part of Torch Inductor and Dynamo that xpugraph touches, and the only place that imports them.

What it takes to generate code for the sycl device is in ``inductor_sycl``, which only this module uses. What is used,
by which torch versions, and why there is no public way:

=====================================================  =========  ==================================================
hook                                                   needed by  why
=====================================================  =========  ==================================================
codegen.common.register_backend_for_device             2.11-2.14  a device's generator of kernels and of the function
                                                                  that calls them
codegen.cpp.CppScheduling.define_kernel and            2.11-2.14  C++ kernels, called by xpugraph's launcher instead of
codegen.wrapper.PythonWrapperCodegen.define_kernel                on the host's thread
PythonWrapperCodegen._generate_kernel_call_helper      2.11-2.14  raises "nyi" for C++ kernels of any device but cpu
                                                                  and mps
codegen.common.register_device_op_overrides            2.11-2.14  how generated code names streams and guards
_dynamo.device_interface.register_interface_for_device 2.11-2.14  Dynamo and Inductor look the device up there, with
                                                                  and without an index
scheduler.BaseSchedulerNode.is_cpu, ir.is_cpu          2.11-2.14  loops are not reordered for C++ kernels, which is
                                                                  asked of the device type "cpu" alone
lowering.is_gpu                                        2.11-2.14  a pointwise operator over a scalar of the host and
                                                                  tensors of the device belongs to the device
_C._conv_determine_backend_memory_format               2.11-2.14  fake convolutions of a device that torch does not know
                                                                  are never channels_last; generated code would lay out
                                                                  input and weight again in every call
config cuda_backend="cpp" (in one compilation only)    2.11-2.14  utils.get_current_backend answers it for every
                                                                  device it does not know; "triton" otherwise
async_compile.AsyncCompile.cpp_pybinding               2.11-2.14  compiles and loads a C++ source
_dynamo.utils.counters                                 2.11-2.14  names graph breaks
_dynamo.utils.guard_failures and                       2.11-2.14  Dynamo's maps for debugging keep a code object, and
_C._dynamo.eval_frame.reset_code                                  all that was compiled for it, until they are told
_dynamo.config, fx.experimental._config                2.11-2.14  errors not swallowed, no duck sizing, recompiling
                                                                  forbidden; always by patch(), for one call
=====================================================  =========  ==================================================

Registration changes nothing for any other device. A torch that this list was not written for is refused. Tests were run
with 2.11.0, 2.13.0 and 2.14.1; for 2.12.0 the names were looked up in its sources. With 2.11 nn.TransformerEncoderLayer
does not compile for the sycl device, as its fused operator has no fake kernel; that is a BuildError with this reason.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .devices import worker_threads
from .errors import BuildError, MissingRuntimeError

VERSIONS = ((2, 11), (2, 12), (2, 13), (2, 14))
_DEVICE = "sycl"
# Part of the key under which torch keeps compiled graphs on disk: raise it with every change of what is generated.
_REVISION = 4
_one_thread = threading.RLock()  # may be waited for in a capture; whoever holds it waits for no capture


def version(text: str | None = None) -> tuple[int, int]:
    """Major and minor version of torch.

    Raises:
        MissingRuntimeError: The hooks were not written for it.
    """
    text = torch.__version__ if text is None else text
    match = re.match(r"(\d+)\.(\d+)", str(text))
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if found not in VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise MissingRuntimeError(
            f"torch {text}: xpugraph does not know the inside of its Inductor; the versions it knows are {known}. "
            "Without Inductor (TorchEagerBackend, compile_with_inductor=False) this torch can be used"
        )
    return found


# ---- counting and configuring ----------------------------------------------------------------------------------------


def graph_breaks() -> Counter[str]:
    """How often this process broke a graph for each reason so far, by torch's own counter."""
    from torch._dynamo.utils import counters

    return Counter(counters["graph_break"])


def forget_with(function: types.FunctionType) -> None:
    """What Dynamo compiled for `function` goes with it."""
    weakref.finalize(function, _forget, function.__code__).atexit = False


def _forget(code: types.CodeType) -> None:
    from torch._C._dynamo.eval_frame import reset_code
    from torch._dynamo.utils import guard_failures

    guard_failures.pop(code, None)
    reset_code(code)


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Lets `dim` of an input be of any length in what is compiled, where the code allows it.

    Not Dynamo's mark_dynamic, which raises where the forward fixes the length for some batch sizes; here that costs one
    more compilation, which is counted.
    """
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def is_marked(value: Any) -> bool:
    """True for a tensor some of whose dimensions somebody has marked for Dynamo."""
    return isinstance(value, torch.Tensor) and any(name.startswith("_dynamo_") for name in value.__dict__)


def is_disabled() -> bool:
    """True when torch.compile does nothing in this process (TORCHDYNAMO_DISABLE=1, or set by code)."""
    return bool(torch._dynamo.config.disable)


@contextlib.contextmanager
def compiling(final: bool = False) -> Iterator[None]:
    """The settings in which xpugraph compiles; those of the process are as before afterwards.

    Errors are raised and never turned into eager runs; dimensions of equal length are not taken for one (a batch of 256
    in a 256-wide layer), and nothing but what is marked is of variable length. Dynamo's limits are off: they count what
    other builds compiled of the same code, such as what follows a graph break in a submodule; xpugraph counts for
    itself. (torch.compile's isolate_recompiles, from 2.13, would count builds apart, but it is one number for all
    threads: while others call what was compiled so, entries land in the wrong place, and code is compiled again.)

    One thread at a time: torch 2.11 has the settings once for all threads, and two that put them back in the order in
    which they came would leave them changed for good.

    Args:
        final: What would be compiled once more raises, with the guards that failed.
    """
    import torch.fx.experimental._config as shapes

    with (
        _one_thread,
        torch._dynamo.config.patch(
            suppress_errors=False,
            recompile_limit=sys.maxsize,
            accumulated_recompile_limit=sys.maxsize,
            assume_static_by_default=True,
            automatic_dynamic_shapes=False,
            error_on_recompile=final,
        ),
        shapes.patch(use_duck_shape=False),  # type: ignore[attr-defined]
    ):
        yield


def compile_options(device: str) -> dict[str, Any]:
    """What Inductor must be told for a device.

    Raises:
        MissingRuntimeError: An option is not known to this torch.
    """
    if device != _DEVICE:
        return {}
    options = {
        "cuda_backend": "cpp",  # the answer of get_current_backend() for a device that Inductor does not know
        "layout_optimization": False,  # it would lay out every convolution's weight again, in every call
        "fallback_random": True,  # numbers come from the device's generator, in stream order
        "triton.cudagraphs": False,
        "cpp.threads": worker_threads(),  # kernels size their buffers for them; the host's number may be another
    }
    unknown = [name for name in options if not _has_option(name)]
    if unknown:
        raise MissingRuntimeError(f"torch {torch.__version__}: Inductor has no option {unknown[0]!r}")
    return options


def _has_option(name: str) -> bool:
    from torch._inductor import config

    return name in config.get_config_copy()


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Inductor's function for one graph of Dynamo's."""
    config = torch.compiler.config
    with config.patch(cache_key_tag=f"{config.cache_key_tag}xpugraph {_REVISION}"):  # type: ignore[attr-defined]
        return torch._inductor.compile(graph, list(inputs), options=dict(options))  # type: ignore[no-any-return]


def mode_options(mode: str, dynamic: bool | None) -> dict[str, Any]:
    """Inductor's options of a mode of torch.compile."""
    return dict(torch._inductor.list_mode_options(mode, dynamic))


def is_of_compiler(error: BaseException) -> bool:
    """True for what Dynamo and Inductor raise, in contrast to what the compiled code itself raises."""
    from torch._dynamo import exc

    kinds = (exc.TorchDynamoException, getattr(exc, "FailOnRecompileLimitHit", exc.TorchDynamoException))
    return isinstance(error, kinds) or type(error).__module__.startswith(
        ("torch._inductor", "torch._dynamo", "torch._functorch", "torch.fx.experimental")
    )


def is_recompile(error: BaseException) -> bool:
    """True when something would have had to be compiled again, which `compiling(final=True)` forbids."""
    from torch._dynamo import exc

    return isinstance(error, exc.RecompileError)


def short_reason(error: BaseException) -> str:
    """What a failed compilation says, without the advice and the stack traces that torch adds."""
    inner = getattr(error, "inner_exception", None) or error
    text = str(inner).strip() or type(inner).__name__
    if is_recompile(inner):
        guards = [line.partition("#")[0].strip() for line in text.splitlines() if re.match(r"\s*- \d+/\d+: ", line)]
        return "guards that failed: " + "; ".join(re.sub(r"^- \d+/\d+: ", "", guard) for guard in guards)
    text, _, source = text.partition("\n\nfrom user code")
    text = text.partition("Set TORCH")[0].partition("\nTraceback")[0]
    text = one_line(text)
    if where := re.findall(r'File "([^"]+)", line (\d+)', source):
        text += f" ({where[-1][0]}:{where[-1][1]})"
    return text if isinstance(inner, BuildError) else f"{type(inner).__name__}: {text}"


def one_line(text: str) -> str:
    """What torch says in several lines, without its advice."""
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Hint:", "For more details")))


def _import_inductor() -> None:
    """Imports Inductor, which uses what torch itself has deprecated; that is no concern of the caller's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")


@functools.cache
def register(device: str) -> None:
    """Makes Inductor able to compile for `device`; only sycl needs it.

    Raises:
        MissingRuntimeError: This torch, or its Inductor, is not one that the hooks were written for.
    """
    version()
    _import_inductor()
    if device != _DEVICE:
        return
    try:
        from . import inductor_sycl

        inductor_sycl.register()
    except (ImportError, AttributeError, TypeError) as error:
        raise MissingRuntimeError(
            f"torch {torch.__version__}: its Inductor is not built as expected ({error}), so nothing can be compiled "
            "for the sycl device; please report this"
        ) from error
