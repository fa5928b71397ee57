"""Few-shot class-incremental learning, right of the features: ``fit_base``, ``learn_session``, ``predict``."""

from typing import Any

from faverage.deprecation import gone
from faverage.fscil.cascade import Cascade
from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.join import JoinedLearner, join
from faverage.fscil.knowledge import Knowledge
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.metrics import forgetting, macro_f1, session_metrics
from faverage.fscil.whitening import Whitening

__all__ = [
    "Cascade",
    "CosineHead",
    "FewShotLearner",
    "JoinedLearner",
    "Knowledge",
    "LinearHead",
    "PrototypeHead",
    "Whitening",
    "forgetting",
    "join",
    "macro_f1",
    "session_metrics",
]

_GONE = {
    "ViewLearner": "FewShotLearner takes any number of views: give it features by name, {'plain': X, 'flip': Y}",
    "Memory": "what a learner knows is its attribute 'known', a Knowledge",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        gone(f"{__name__}.{name}", _GONE[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
