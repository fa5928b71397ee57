"""One way to fail: every error that is a person's to put right is a UserError, with fields, in any process."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from faverage import data, errors, experiment, prediction_files, vision
from faverage.app import names

KINDS = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_user_error_and_survives_another_process(kind: type[errors.UserError]) -> None:
    error = kind("model.csv is empty", what=Path("model.csv"), hint="give another")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, errors.UserError) and isinstance(again, ValueError) and type(again) is kind
    assert str(again) == str(error) == f"model.csv is empty{kind.joint}give another"
    assert (again.reason, again.what, again.hint) == ("model.csv is empty", Path("model.csv"), "give another")
    assert str(kind("all of it")) == "all of it"


def test_differences_of_a_training_survive_another_process() -> None:
    error = errors.OtherTrainingError("other", what="a", differences=[("epochs", 1, 2)])
    assert pickle.loads(pickle.dumps(error)).differences == (("epochs", 1, 2),)


def test_they_are_found_where_they_were() -> None:
    assert data.DataError is errors.DataError and experiment.ConfigError is errors.ConfigError
    assert names.ModelError is errors.ModelError and names.BusyError is errors.BusyError
    assert prediction_files.UserError is errors.UserError and vision.CheckpointError is errors.CheckpointError


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (None, "'faverage[app]'"),
        ('{"url": "file:///w/faverage-0.2.0-py3-none-any.whl"}', "'/w/faverage-0.2.0-py3-none-any.whl[app]'"),
        ('{"url": "https://h/f.git", "vcs_info": {"vcs": "git"}}', "'faverage[app] @ git+https://h/f.git'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(told, line, monkeypatch, tmp_path) -> None:
    found = SimpleNamespace(read_text=lambda name: told)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: found)
    monkeypatch.setattr(errors.shutil, "which", lambda name: f"{errors.sysconfig.get_path('scripts')}/{name}")
    monkeypatch.chdir(errors.Path(errors.__file__).parents[2])
    assert errors.install_line("app") == "pip install -e '.[app]'"  # a checkout
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "a" / "b" / "errors.py"))
    assert errors.install_line("app") == f"pip install {line}"
    monkeypatch.chdir(tmp_path)  # not where the environment is, whose path would be shortened
    monkeypatch.setattr(errors.shutil, "which", lambda name: "/elsewhere/pip")
    assert errors.install_line("app") == f"{errors.sys.executable} -m pip install {line}"
