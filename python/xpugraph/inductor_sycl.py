# SPDX-License-Identifier: MIT
"""Inductor's C++ kernels on the sycl device; a part of ``inductor_hooks``, whose list says what is used and why."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .errors import BuildError

_DEVICE = "sycl"
_MARK = "// a kernel of the sycl device"


def register() -> None:
    """Registers the device with Dynamo and Inductor, once."""
    from torch._dynamo import device_interface
    from torch._inductor import ir, lowering, scheduler
    from torch._inductor.codegen import common
    from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides

    common.init_backend_registration()  # first, so that it does not look for a registration of ours afterwards
    common.register_backend_for_device(_DEVICE, _scheduling_class(), _wrapper_class())
    common.register_device_op_overrides(_DEVICE, CpuDeviceOpOverrides())
    interface = _interface_class(device_interface)
    for name in (_DEVICE, f"{_DEVICE}:0"):
        device_interface.register_interface_for_device(name, interface)

    node_is_cpu = scheduler.BaseSchedulerNode.is_cpu
    is_cpu, is_gpu = ir.is_cpu, lowering.is_gpu

    def node_runs_cpp(self: Any) -> bool:
        device = self.get_device()
        return node_is_cpu(self) or (device is not None and device.type == _DEVICE)

    scheduler.BaseSchedulerNode.is_cpu = node_runs_cpp  # type: ignore[method-assign]
    ir.is_cpu = lambda x: is_cpu(x) or ir.get_device_type(x) == _DEVICE
    # Asked there for which input gives the device and, from 2.14, whether half-precision index_put is left to ATen.
    lowering.is_gpu = lambda device: device == _DEVICE or is_gpu(device)
    _register_memory_format()


def _register_memory_format() -> None:
    from torch._prims_common import suggest_memory_format

    determine = torch._C._conv_determine_backend_memory_format

    def memory_format(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        """As the CPU's kernels, which the device runs, choose it: that of the input or else of the weight.

        In three dimensions they choose by size too, so nothing but the contiguous format can be foretold.
        """
        if x.device.type != _DEVICE or x.dim() != 4:
            return determine(x, weight, backend)
        chosen = suggest_memory_format(x)
        return chosen if chosen is not torch.contiguous_format else suggest_memory_format(weight)

    torch._C._conv_determine_backend_memory_format = memory_format  # type: ignore[assignment]


def _interface_class(device_interface: Any) -> type:
    class SyclInterface(device_interface.CpuInterface):
        """What Dynamo asks of a device: the CPU's answers, but its streams are torch.sycl's."""

        @staticmethod
        def device_count() -> int:
            return 1

        @staticmethod
        def current_stream(device: Any = None) -> torch.Stream:
            return torch.accelerator.current_stream()

        @staticmethod
        def set_stream(stream: torch.Stream) -> None:
            torch.accelerator.set_stream(stream)

        @staticmethod
        def synchronize(device: Any = None) -> None:
            torch.accelerator.current_stream().synchronize()

    return SyclInterface


def _scheduling_class() -> type:
    from torch._inductor.codegen.cpp import CppScheduling

    class SyclScheduling(CppScheduling):
        """Inductor's own C++ kernels, marked as the device's."""

        def define_kernel(self, src_code: str, *args: Any, **kwargs: Any) -> Any:
            # Kernels are shared by their text, and one of the CPU with the same text must stay the CPU's.
            return super().define_kernel(f"{_MARK}\n{src_code}", *args, **kwargs)

    return SyclScheduling


def _launches_class() -> type:
    from torch._inductor.virtualized import V

    expected = "async_compile.cpp_pybinding("

    class Launches:
        def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
            """Gives C++ kernels of the device to load_kernel() instead of to Inductor's binding."""
            if _MARK in kernel_body:
                if not kernel_body.startswith(expected):
                    raise BuildError(f"Inductor defines {kernel_name} in another way than {expected!r}")
                rest = kernel_body[len(expected) :]
                kernel_body = f"xpugraph_load_kernel(async_compile, {kernel_name!r}, {rest}"
            super().define_kernel(kernel_name, kernel_body, *args, **kwargs)  # type: ignore[misc]

        def _generate_kernel_call_helper(
            self, kernel_name: str, call_args: Any, *, device: Any = None, triton: bool = True, **kwargs: Any
        ) -> None:
            where = device or V.graph.get_current_device_or_throw()
            if where.type != _DEVICE:
                super()._generate_kernel_call_helper(  # type: ignore[misc]
                    kernel_name, call_args, device=device, triton=triton, **kwargs
                )
                return
            if triton:
                raise BuildError(f"Inductor wants Triton for {kernel_name}, which the sycl device does not have")
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))  # type: ignore[attr-defined]

    return Launches


def _wrapper_class() -> type:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen

    for name in ("define_kernel", "_generate_kernel_call_helper", "wrap_kernel_call", "write_header", "create"):
        if not hasattr(PythonWrapperCodegen, name):
            raise AttributeError(f"PythonWrapperCodegen.{name} is missing")
    launches: Any = _launches_class()

    class SyclWrapper(launches, PythonWrapperCodegen):
        """Writes the function that launches a graph's kernels."""

        @staticmethod
        def create(is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if is_subgraph:
                return SyclSubgraphWrapper(subgraph_name, parent_wrapper, *args, **kwargs)
            return SyclWrapper()

        def write_header(self) -> None:
            super().write_header()
            self.imports.splice(f"from {__name__} import load_kernel as xpugraph_load_kernel")

    class SyclSubgraphWrapper(launches, SubgraphPythonWrapperCodegen):
        """The same for a part of a graph (a branch of torch.cond)."""

    return SyclWrapper


def load_kernel(async_compile: Any, name: str, arg_types: Sequence[str], source: str) -> Any:
    """Compiles one generated kernel; called by generated code.

    The kernel is called by a function that takes an array of 64-bit values, so that any kernel can be submitted to the
    device's queue with its arguments. Inductor's own binding, whose headers are compiled once for all kernels, is kept
    and told to call what gives that function's address.

    Returns:
        A native Kernel, which launches when it is called, or what AsyncCompile.wait() turns into one.
    """
    from torch._inductor.codecache import LambdaFuture

    renamed, count = re.subn(r"\bkernel\(", "kernel_body(", source, count=1)
    if count != 1:
        raise BuildError(f"Inductor's kernel {name} has no function called 'kernel'")
    give_address = async_compile.cpp_pybinding(["int64_t"], renamed + _entry(name, arg_types))
    make = functools.partial(_kernel, name, len(arg_types))
    later = hasattr(give_address, "result")
    return LambdaFuture(lambda: make(give_address.result())) if later else make(give_address)


def _kernel(name: str, arguments: int, give_address: Callable[[int], None]) -> Any:
    from . import _native

    place = ctypes.c_int64()
    give_address(ctypes.addressof(place))
    return _native.load().sycl.Kernel(name, place.value, arguments)


def _entry(name: str, arg_types: Sequence[str]) -> str:
    values = []
    for i, kind in enumerate(arg_types):
        if kind.rstrip().endswith("*"):
            values.append(f"reinterpret_cast<{kind}>(static_cast<uintptr_t>(values[{i}]))")
        elif "int" in kind or "long" in kind:
            values.append(f"static_cast<{kind.replace('const ', '')}>(values[{i}])")
        else:
            raise BuildError(f"Inductor's kernel {name} takes a {kind}, which the sycl device cannot pass")
    listed = ",\n        ".join(values)
    return f"""
static void kernel_of_values(const int64_t* values)
{{
    kernel_body({listed});
}}
extern "C" void kernel(int64_t place)
{{
    *reinterpret_cast<int64_t*>(place) = reinterpret_cast<int64_t>(&kernel_of_values);
}}
"""
