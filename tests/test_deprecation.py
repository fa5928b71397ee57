"""Words of the version before still work, and a warning names the new one."""

from pathlib import Path

import pytest

from faverage.experiment import RunConfig
from helpers_run import command, own_cache, said  # noqa: F401


def test_a_strategy_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("strategy: ddp\nepochs: 0\n")
    result = command("digits", "--config", file, "--strategy", "ddp")
    assert result.exit_code == 2 and "epochs must be a whole number" in said(result)
    warning = "Warning: 'strategy' has no effect: leave it out, it will be an error in the next version"
    assert said(result).count(warning) == 1
    assert "strategy" not in command("--help").stdout
    with pytest.warns(DeprecationWarning, match="'strategy' has no effect"):
        config = RunConfig.build("digits", None, {"strategy": "ddp"})
    assert config == RunConfig.build("digits", None, {})
