import os
import shutil
from pathlib import Path

import pytest

from faverage.storage import alone
from helpers_sweep import Here, command, written


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small sweep in this process: made once for all processes that share the tests, copied for each."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = shared / "undisturbed"
    with alone(shared, "undisturbed"):
        if not (made / "sweep.json").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("faverage.experiment.sweep.run.Loky", Here)
                result = command(written(shared), "--out", made, "--jobs", 1)
            assert result.exit_code == 0, result.output
    written(own)  # beside the copy, for those who start it again
    return Path(shutil.copytree(made, own / "whole"))
