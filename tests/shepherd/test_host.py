"""What a node says of its machine; GPUs as nvidia-smi and the driver's own file tell them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shoal.shepherd import gpus, host

DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"


def test_the_machine_is_named_with_what_it_has() -> None:
    facts = host.about()
    assert (facts["host"], facts["kernel"]) == (socket.gethostname(), os.uname().release)
    assert facts["cpus"] == os.cpu_count() and facts["memory"] > 1 << 20 and facts["cpu"] and facts["system"]


def test_a_fact_that_is_not_told_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_DRIVER", tmp_path / "none")
    assert "driver" not in host.about()


@pytest.mark.parametrize(("text", "version"), [(DRIVER, "550.54.15"), (OPEN, "570.133.20"), ("", None)])
def test_the_driver_is_read_from_its_own_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, version: str | None
) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(host, "_DRIVER", tmp_path / "version")
    assert host.about().get("driver") == version


def test_gpus_go_by_their_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n[ -n \"$SHOAL_MEMBER\" ] && printf 'NVIDIA H100 80GB HBM3\\nNVIDIA L4\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus.names() == ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus.names() == []
