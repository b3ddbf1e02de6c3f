# SPDX-License-Identifier: MIT
"""Checkpoints: a tuned module kept in ``manifest.json`` and ``weights.safetensors``, without pickle.

The manifest has the routes, the recipes of the routed backends, the fingerprint of the module, the device and versions
it was tuned on, and the tuning report. The weights are there once, however many backends share them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .archive import MANIFEST, WEIGHTS, Archive, check_target, write_folder, write_zip
from .errors import CheckpointError, ConfigError, XPUGraphError
from .manifest import FORMAT, SCHEMA, parse, render

if TYPE_CHECKING:
    import torch

    from .backends import BatchSizeRouterBackend
    from .tuning import TunedModule, TuningReport


class CheckpointWarning(UserWarning):
    """The checkpoint was tuned elsewhere; its routes may not be the fastest here."""


def save(tuned: TunedModule, path: str | Path, folder: bool | None = None) -> Path:
    """Writes a tuned module. An existing checkpoint is replaced in one step; a kill leaves the old one whole.

    Args:
        tuned: From ``tune`` or ``load``.
        path: Of a zip file or a folder.
        folder: True: a folder. False: a zip. None: a folder where there is one already, else a zip.

    Returns:
        The path.

    Raises:
        ConfigError: The module's state or its call holds something that has no place in JSON or safetensors; names it.
        CheckpointError: `path` is something else that is not to be replaced.
        OSError: It cannot be written.
    """
    from .tuning import TunedModule
    from .weights import fingerprint, pack

    if not isinstance(tuned, TunedModule):
        raise ConfigError(f"tuned: a TunedModule, as tune() returns it, is needed; not a {type(tuned).__name__}")
    path = Path(path)
    as_folder = path.is_dir() if folder is None else folder
    check_target(path, as_folder)
    weights, aliases = pack(tuned.module)
    manifest = {
        "format": FORMAT,
        "schema": SCHEMA,
        "device": tuned.report.device,
        "versions": tuned.report.versions,
        "module": fingerprint(tuned.module),
        "aliases": aliases,
        "router": tuned.backend.to_dict(),
        "report": tuned.report.to_dict(),
    }
    members = {MANIFEST: render(manifest), WEIGHTS: weights}
    (write_folder if as_folder else write_zip)(path, members)
    return path


def load(module: torch.nn.Module, path: str | Path) -> TunedModule:
    """Brings a saved module back: takes the weights over into `module`, records its graphs again, routes as saved.

    Nothing is profiled. Every graph is checked against eager, as in ``build``.

    Args:
        module: Like the one that was saved, in evaluation mode, on its device; its weights are overwritten.
        path: Of a zip or a folder.

    Raises (the module is then unchanged):
        CheckpointError: The file is damaged, of another format or schema, or was made of another module: names the
            first parameter that differs.
        ConfigError: A routed backend cannot run on the module's device.
        BuildError: A graph cannot be recorded here.

    Warns:
        CheckpointWarning: Device or versions are not those it was tuned on, or plain attributes of the module are not
            what they were.
    """
    import torch

    from .backends import BatchSizeRouterBackend
    from .tuning import TunedModule, TuningReport
    from .watch import check_module
    from .weights import check_fingerprint, unpack

    check_module(module)
    with Archive(Path(path)) as archive:
        text, weights = archive.read(MANIFEST), archive.read(WEIGHTS)
    try:
        manifest = parse(text)
        same_torch = manifest["versions"].get("torch") == torch.__version__
        check_fingerprint(module, manifest["module"], same_torch)
        report = TuningReport.from_dict(manifest["report"])
        router = BatchSizeRouterBackend.from_dict(module, manifest["router"])
        tensors = unpack(weights, manifest["aliases"], module)
    except (CheckpointError, ConfigError) as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:  # whatever a class of backend trips over
        raise CheckpointError(f"{path}: the saved backends are not what they write ({error!r})") from error
    _warn(manifest, module)
    _start(module, router, tensors, path)
    return TunedModule(module, router, report)


def _start(
    module: torch.nn.Module, router: BatchSizeRouterBackend, tensors: dict[str, torch.Tensor], path: str | Path
) -> None:
    """Takes the weights over and records; whatever goes wrong, the module has its old weights again."""
    import torch

    from .weights import same_bits

    before = {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
    try:
        module.load_state_dict(tensors)
        for name, tensor in module.state_dict().items():
            if not same_bits(tensor, tensors[name]):
                raise CheckpointError(
                    f"{path}: {name!r} shares memory with other weights of this module, and had other values than they "
                    "when it was saved"
                )
        router.deploy()
    except BaseException as error:
        for name, tensor in module.state_dict().items():
            if not same_bits(tensor, before[name]):
                tensor.copy_(before[name])
        known = (XPUGraphError, MemoryError, torch.OutOfMemoryError)
        if isinstance(error, known) or not isinstance(error, Exception):
            raise
        raise ConfigError(f"{path}: the saved backends cannot be started here: {error!r}") from error


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says of itself; needs no device.

    Attributes:
        path: Where it is.
        device: Type and name of the device it was tuned on.
        versions: It was tuned with.
        module: Class of the module.
        parameters: Number of values in its parameters and buffers, tied ones once.
        weight_bytes: Bytes of the weights.
        recorded_batch_sizes: By label of the routed backends that have graphs.
        report: Of the tuning, routes included.
    """

    path: Path
    device: str
    versions: dict[str, str]
    module: str
    parameters: int
    weight_bytes: int
    recorded_batch_sizes: dict[str, list[int]]
    report: TuningReport

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{self.path}: {self.module}, {self.parameters:,} values, {self.weight_bytes:,} bytes of weights",
            f"tuned on {self.device} with {versions}",
        ]
        for label, sizes in self.recorded_batch_sizes.items():
            lines.append(f"{label} records batch sizes {', '.join(map(str, sizes))}")
        text = "\n".join([*lines, "", str(self.report)])
        return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)  # no codes for terminals

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "path": str(self.path), "report": self.report.to_dict()}


def inspect_checkpoint(path: str | Path) -> CheckpointInfo:
    """Reads what a checkpoint says of itself. All sums are compared. No device is needed.

    Raises:
        CheckpointError: As ``load``, but for the module.
    """
    from .tuning import TuningReport
    from .weights import read

    with Archive(Path(path)) as archive:
        text, weights = archive.read(MANIFEST), archive.read(WEIGHTS)
    try:
        manifest = parse(text)
        read(weights)
        module, report = manifest["module"], TuningReport.from_dict(manifest["report"])
        info = CheckpointInfo(
            path=Path(path),
            device=manifest["device"],
            versions=manifest["versions"],
            module=module["class"],
            parameters=sum(math.prod(t["shape"]) for t in module["tensors"] if t["name"] not in manifest["aliases"]),
            weight_bytes=len(weights),
            recorded_batch_sizes={
                label: [int(size) for size in backend["recipe"]["batch_sizes"]]
                for label, backend in manifest["router"]["backends"].items()
                if "max_recorded_batch_size" in backend.get("config", {})  # it records
            },
            report=report,
        )
        str(info)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except Exception as error:  # whatever a report from elsewhere trips over; it must not be when it is printed
        raise CheckpointError(f"{path}: the manifest is not what save() writes ({error!r})") from error
    return info


def _warn(manifest: dict[str, Any], module: torch.nn.Module) -> None:
    from .environment import device_name, versions
    from .weights import changed_attributes

    tensors = itertools.chain(module.parameters(), module.buffers())
    device = next((t.device.type for t in tensors), "cpu")
    here = {"device": device_name(device), **versions()}
    saved = {"device": manifest["device"], **manifest["versions"]}
    ignored = {"torchvision"}
    differ = [name for name in saved if name not in ignored and saved[name] != here.get(name)]
    if differ:
        listed = ", ".join(f"{name} {saved[name]} (here {here.get(name, 'none')})" for name in differ)
        warnings.warn(
            f"the checkpoint was tuned on {listed}; its routes may not be the fastest here, tune() again to be sure",
            CheckpointWarning,
            stacklevel=3,
        )
    if changed := changed_attributes(module, manifest["module"]):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        warnings.warn(
            f"attributes of the module are not what they were when it was saved: {'; '.join(changed[:3])}{more}",
            CheckpointWarning,
            stacklevel=3,
        )
