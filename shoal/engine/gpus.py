"""The GPUs of this machine, as NVML tells them; none without the library, the driver or a card. Never an error."""

from __future__ import annotations

import importlib
import re
from itertools import pairwise
from typing import Any

from shoal.job.nodes import Gpu

PRETENDED = "pretend"
_LONGEST_TYPE = 63  # what a name in a job file may have


def find(visible: str | None = None) -> tuple[Gpu, ...]:
    """Every GPU, by its NVML index, that `visible` (a CUDA_VISIBLE_DEVICES: indices or UUIDs) leaves in sight."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()  # no driver, or one that does not answer: the machine works without
    try:
        return tuple(gpu for gpu, uuid in _all(nvml) if _in_sight(gpu.index, uuid, visible))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def pretend(count: int) -> tuple[Gpu, ...]:
    """GPUs that are only counted, to try a job's shape on a machine without."""
    return tuple(Gpu(index, PRETENDED) for index in range(count))


def split(gpus: tuple[Gpu, ...], nodes: int) -> list[tuple[Gpu, ...]]:
    """The machine's GPUs shared out among pretended nodes, neighbours together."""
    edges = [len(gpus) * i // nodes for i in range(nodes + 1)]
    return [gpus[low:high] for low, high in pairwise(edges)]


def type_name(product: str) -> str:
    """A product as a word that fits into a job file: `NVIDIA GeForce RTX 4090` is `GeForce-RTX-4090`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", product.removeprefix("NVIDIA ")).strip("-._")
    return plain[:_LONGEST_TYPE] or "gpu"


def _all(nvml: Any) -> list[tuple[Gpu, str]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [
        (Gpu(index, type_name(_text(nvml.nvmlDeviceGetName(handle)))), _text(nvml.nvmlDeviceGetUUID(handle)))
        for index, handle in enumerate(handles)
    ]


def _in_sight(index: int, uuid: str, visible: str | None) -> bool:
    if visible is None:
        return True
    words = [word.strip() for word in visible.split(",")]
    return any(word == str(index) or (word.startswith("GPU-") and uuid.startswith(word)) for word in words)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings answer in bytes
