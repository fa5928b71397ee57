"""Sweeps on a cluster: workers that are killed, workers that see another folder, schedulers that are not there."""

import functools
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from faverage.errors import install_line
from faverage.experiment import ConfigError
from faverage.experiment.sweep import Plan, engines, work
from faverage.experiment.sweep.engines import EngineLost
from faverage.experiment.sweep.work import mark
from helpers_sweep import (
    SMALL,
    TROUBLE,
    bases_from,
    command,
    first_model_fuser,
    numbers,
    runs_of,
    said,
    troubled,
    written,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("distributed") is None, reason="dask.distributed is not installed"),
]


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """Two worker processes; a run may kill two of them, one more than is forgiven."""
    import dask
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    settings = {"distributed.scheduler.allowed-failures": 1, "distributed.worker.daemon": True}
    if hasattr(os, "fork"):  # from a process that has loaded once what each worker would load for seconds
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
    with dask.config.set(settings):
        if hasattr(os, "fork"):
            get_mp_context().set_forkserver_preload(["distributed", "sklearn", "torch._dynamo", work.__name__])
        local = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50)
        with local:
            yield local


def test_killed_workers_cost_one_run_each(
    workers: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the middle of runs: all end as in an undisturbed sweep, but the one that kills all its workers."""
    file, out, poison, broken = written(tmp_path), tmp_path / "out", ("arithmetic", 1, 1), ("prototypes", 1, 0)
    cluster = ("--engine", "dask", "--scheduler", workers.scheduler_address)
    with monkeypatch.context() as patch:
        patch.setattr("faverage.experiment.sweep.run.carry_out", functools.partial(troubled, TROUBLE))
        result = command(file, "--out", out, *cluster)
    expected, runs, found = numbers(whole), runs_of(out), numbers(out)
    assert result.exit_code == 1, result.output
    assert runs[poison]["status"] == "failed" and "its worker was killed, 2 times" in runs[poison]["error"]
    assert runs[broken]["status"] == "failed" and runs[broken]["error"] == "RuntimeError: it broke"
    assert {which for which in expected if found[which] != expected[which]} == {poison, broken}
    assert command(file, "--out", out, *cluster).exit_code == 0
    assert numbers(out) == expected and len(list(out.glob("runs/*.json"))) == 12


def test_workers_know_methods_from_outside(workers: Any, whole: Path, tmp_path: Path) -> None:
    file, out = written(tmp_path, SMALL.replace("prototypes", "first")), bases_from(whole, tmp_path / "out")
    with first_model_fuser():
        result = command(file, "--out", out, "--engine", "dask", "--scheduler", workers.scheduler_address)
    assert result.exit_code == 0 and len(runs_of(out)) == 12, result.output


def test_workers_must_see_the_folder_and_have_the_same_versions(workers: Any, tmp_path: Path) -> None:
    plan, token, address = Plan.read(written(tmp_path)), mark(tmp_path), workers.scheduler_address
    engines.Dask(address, tmp_path, token, plan.versions).close()
    with pytest.raises(ConfigError, match=r"does not see .* all workers share"):
        engines.Dask(address, tmp_path, "another mark", plan.versions)
    with pytest.raises(ConfigError, match=r"but here it is 0\.1: install the same versions"):
        engines.Dask(address, tmp_path, token, {**plan.versions, "numpy": "0.1"})


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense", "here:there"):
        result = command(written(tmp_path), "--out", tmp_path / "out", "--engine", "dask", "--scheduler", address)
        assert result.exit_code == 2 and f"no scheduler answers at {address}" in said(result), said(result)
        assert "start one with 'dask scheduler'" in said(result)


def test_no_workers_is_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(engines, "WORKERS_SECONDS", 0.5)
    plan, token = Plan.read(written(tmp_path)), mark(tmp_path)
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=0, **options) as local:
        with pytest.raises(ConfigError, match="has no workers: start some with 'dask worker"):
            engines.Dask(local.scheduler_address, tmp_path, token, plan.versions)
        local.scale(1)
        engine = engines.Dask(local.scheduler_address, tmp_path, token, plan.versions)
        assert engine.places() == 1
        local.scale(0)
        with pytest.raises(EngineLost, match="no worker has been left"):
            while True:
                engine.places()
        engine.close()


def test_dask_is_asked_for_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = command(written(tmp_path), "--out", tmp_path / "out", "--engine", "dask", "--scheduler", "tcp://x:1")
    assert result.exit_code == 2 and install_line("scale") in said(result)
