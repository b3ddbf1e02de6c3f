# SPDX-License-Identifier: MIT
"""Faults of drivers and runtimes that users met, by the words they are known by, each with what helps.

The table is what ``docs/troubleshooting.md`` is checked against. Nothing here changes what is done: a size whose
recording fails is dropped and named; the advice is added to the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        pattern: What its message has, as a regular expression.
        advice: What is known of it and what to do.
        source: Where it was reported; empty where it is no fault.
    """

    pattern: str
    advice: str
    source: str

    def __str__(self) -> str:
        return f"{self.advice} ({self.source})" if self.source else self.advice


FAULTS = (
    Fault(
        r"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|error code 39\b",
        "the device is out of memory. Bound the graphs' with pool_limit_bytes, record up to a smaller batch "
        "(max_recorded_batch_size), or end other processes on this device",
        "",
    ),
    Fault(
        r"UR_RESULT_ERROR_OUT_OF_RESOURCES|error code 40\b",
        "the driver ran out of what it needs for a graph, which is not memory: some cards take only a few graphs. "
        "Record fewer sizes (batch_sizes=[...]), try XPUGRAPH_NATIVE_RECORDING=0 or a newer driver",
        "vllm-project/vllm-xpu-kernels#509, intel/compute-runtime#957",
    ),
    Fault(
        r"UR_RESULT_ERROR_DEVICE_LOST|ZE_RESULT_ERROR_DEVICE_LOST",
        "the device was reset: a kernel failed or ran too long. Start a new process; if this graph did it, leave "
        "its size out and report the model",
        "vllm-project/vllm-xpu-kernels#457, intel/torch-xpu-ops#5272",
    ),
    Fault(
        r"wait method cannot be used for an event associated with a command graph|wait cannot be called for a queue "
        r"which is recording",
        "the forward, or another thread with torch.xpu.synchronize or empty_cache, waited for the device while it was "
        "recorded: keep .item(), .cpu() and printing of tensors out of the forward. Or memory ran out: torch frees "
        "what it has cached first, and waits for that; record up to a smaller batch (max_recorded_batch_size)",
        "vllm-project/vllm-xpu-kernels#567, pytorch/pytorch#187277",
    ),
    Fault(
        r"Graph nodes cannot depend on events from outside the graph",
        "a library waited for an event of before the recording. With fused attention: "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or a torch where it is fixed (nightly 2.15.0.dev20260822; "
        "2.13 has the fault, of 2.14 it is not known)",
        "intel/torch-xpu-ops#5069, ggml-org/llama.cpp#28725",
    ),
    Fault(
        r"native recording mode|enable_native_recording|native UR (executable )?graph",
        "the driver's own recording does not take this. XPUGRAPH_NATIVE_RECORDING=0 records with SYCL's command graphs",
        "intel/llvm#21616",
    ),
    Fault(
        r"the process hung for",
        "with torch 2.14 a wait inside of the driver's own recording may stand still for ever: "
        "XPUGRAPH_NATIVE_RECORDING=0 records with SYCL's command graphs, and a Level Zero driver from 1.15.38583 on "
        "raises an error instead. With an older torch nothing is known: report it",
        "pytorch/pytorch#187931",
    ),
    Fault(
        r"-lze_loader|level_zero/ze_api\.h",
        "Triton compiles against Level Zero's headers where it runs: sudo apt-get install libze-dev",
        "intel/intel-xpu-backend-for-triton#2548",
    ),
    Fault(
        r"nothing was recorded|the graph has no node",
        "the forward's work went to another queue than the current stream's, or it does none",
        "vllm-project/vllm#48946, intel/auto-round#2206",
    ),
    Fault(
        r"[Aa]ttempt to increase offset for an? XPU generator not in capture mode|PhiloxXpuState|philox_engine_inputs",
        "the forward draws random numbers, which are not recorded. Use eval(), or the eager backend",
        "pytorch/pytorch#46148",
    ),
    Fault(
        r"UR_RESULT_ERROR_UNSUPPORTED_FEATURE|[Dd]evice does not support|feature is not supported",
        "the driver or device cannot record this. `xpugraph env` tells graph aspects and engine of each device; "
        "a newer driver may have them",
        "intel/llvm#21616",
    ),
    Fault(
        r"work_group_scratch_memory|work group scratch memory",
        "kernels with scratch memory (flash attention) can be recorded from torch 2.13 on",
        "intel/torch-xpu-ops#3142",
    ),
)

# A crash leaves no message. SIGSEGV at the first submission is what this one looks like.
CRASH = Fault(
    r"crashed \(signal (SIGSEGV|SIGABRT|SIGBUS)\) at its first submission",
    "with the 2026.1 runtime some cards crash at the first submission. SYCL_UR_USE_LEVEL_ZERO_V2=0 or "
    "UR_LOADER_USE_LEVEL_ZERO_V2=0 in the environment selects the older Level Zero adapter, which does not. On any "
    "version libze1 and libze-intel-gpu1 of different releases crash where the device is asked for its properties: "
    "upgrade both together",
    "intel/llvm#22958, pytorch/pytorch#179891",
)


def advice(message: str) -> str | None:
    """Returns what is known of a failure with this message, and where it was reported."""
    for fault in (*FAULTS, CRASH):
        if re.search(fault.pattern, message):
            return str(fault)
    return None


def explain(error: BaseException) -> str:
    """Returns an error as one text, with advice where the fault is known."""
    text = f"{type(error).__name__}: {error}"
    known = advice(text)
    return text if known is None else f"{text}\n    known: {known}"


def concerning(torch_version: str, xpu_version: str | None) -> list[str]:
    """Returns the known faults of an installed torch for XPU, for ``xpugraph env``."""
    if xpu_version is None:
        return []
    notes = []
    release = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    if xpu_version >= "20260100":
        notes.append(str(CRASH))
    if release == (2, 14):
        notes.append(
            "torch.xpu.synchronize() waits for every queue of the device; unknown whether it still crashes after a "
            "replay: wait for streams (pytorch/pytorch#187277, pytorch/pytorch#187306)"
        )
    if xpu_version < "20260000":
        notes.append("kernels with scratch memory (flash attention) cannot be recorded (intel/torch-xpu-ops#3142)")
    if release in ((2, 13), (2, 14)):
        known = "cannot be recorded" if release == (2, 13) else "may be impossible to record (not known for 2.14)"
        notes.append(
            f"fused attention {known}; SDPBackend.MATH can, and a torch where it is fixed (2.15.0.dev20260822; "
            "intel/torch-xpu-ops#5069)"
        )
    return notes
